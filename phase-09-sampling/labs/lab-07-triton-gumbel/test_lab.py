"""Lab 09-07: stateless sampling in two kernels, judged without a GPU by the kernel bench."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from course.kernels.lab import Kernels, runs_alone

pytestmark = [pytest.mark.torch, pytest.mark.triton]
GUMBEL = Kernels(
    "gumbel",
    ["block_kernel", "row_kernel"],
    "both kernels: the right tokens, no race, each logit once",
)


def test_the_draw_is_the_whole_rows(lab: ModuleType) -> None:
    """Any blocks give the tokens that numpy draws over whole rows, to the last bit of the noise."""
    GUMBEL.judged(lab, "right")


def test_programs_leave_no_race(lab: ModuleType) -> None:
    """Each block has its own place for what it found."""
    GUMBEL.judged(lab, "races")


def test_each_logit_is_read_once(lab: ModuleType) -> None:
    """Each logit is read once, and what the blocks found costs few bytes more."""
    GUMBEL.judged(lab, "bytes")


def test_compiles_for_four_gpus(lab: ModuleType) -> None:
    """The kernels compile for sm_75, 80, 90 and 100, without spills and with 128-bit loads."""
    GUMBEL.accepted(lab)
    GUMBEL.judged(lab, "compiled", ("compiled",))


@pytest.mark.vllm
def test_draws_as_vllms_kernel(lab: ModuleType) -> None:
    """The kernels draw what gumbel_sample of vLLM's model runner V2 draws, in close races too."""
    GUMBEL.accepted(lab)
    GUMBEL.judged(lab, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernel_runs_by_itself(lab: ModuleType, device: str) -> None:
    """The lab's show.py runs on this device; on the CPU the noise is numpy's to the bit."""
    GUMBEL.accepted(lab)
    script = Path(__file__).with_name("show.py")
    printed = runs_alone(lab, script, device, "numpy's noise, or draws other tokens", "float32")
    others = int(printed["other numbers"])
    assert device != "cpu" or not others, f"{others} of the noise numbers are not numpy's"
