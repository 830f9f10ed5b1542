"""Lab 11-02: shrink and expand, judged without a GPU by the kernel bench."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.kernels.lab import Kernels, runs_alone
from course.learner.predictions import wrong_in

pytestmark = [pytest.mark.torch, pytest.mark.triton]
LORA = Kernels(
    "lora",
    ["shrink_kernel", "expand_kernel"],
    "both kernels: right, without races and frugal",
)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the four questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "lists": (
            ([-1, 0, 1, 3], [4, 2, 35, 1], [0, 4, 6, 41]),
            "Which groups are there, in the order of their slots, and where does each begin?",
        ),
        "shrink": ((45, 15), "How many tiles is each group given, and how many do its rows fill?"),
        "expand": ((2880, 480), "Which slice decides how many blocks every slice is given?"),
        "read": ((16, 2), "Whose A does each program load, and how many programs have that slot?"),
    }
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"four questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        parts = [(said[name], fact)]
        if name == "lists":
            assert len(said[name]) == 3, f"lists: three are asked for, not {said[name]}"
            parts = list(zip(said[name], fact, strict=True))
        wrong = next(filter(None, (wrong_in(mine, right) for mine, right in parts)), "")
        assert not wrong, f"{name}: {wrong}. {ask}"


def test_the_deltas_are_right(lab: ModuleType) -> None:
    """Every row gets its own adapter's delta, within rounding of float64; a row without one keeps its y."""
    LORA.judged(lab, "right")


def test_programs_leave_no_race(lab: ModuleType) -> None:
    """No two programs add to the same number of out, or store the same one of mid."""
    LORA.judged(lab, "races")


def test_no_adapter_is_read_for_nothing(lab: ModuleType) -> None:
    """A and B are read once for each tile of rows, and never by a program that has no row."""
    LORA.judged(lab, "bytes")


def test_compiles_for_four_gpus(lab: ModuleType) -> None:
    """Both compile for sm_75, 80, 90 and 100: no spills, 128-bit loads, tensor cores from sm_80 on."""
    LORA.accepted(lab)
    LORA.judged(lab, "compiled", ("compiled",))


@pytest.mark.vllm
def test_agrees_with_vllms_kernels(lab: ModuleType) -> None:
    """The kernels agree with vLLM's own lora_shrink and lora_expand on the same lists."""
    LORA.accepted(lab)
    LORA.judged(lab, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernels_run_by_themselves(lab: ModuleType, device: str) -> None:
    """The lab's script show.py runs both kernels on this device."""
    LORA.accepted(lab)
    runs_alone(lab, Path(__file__).with_name("show.py"), device, "the deltas in float64")
