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
    """The tokens that numpy draws over whole rows, in any blocks, down to the last bit of the noise."""
    GUMBEL.judged(lab, "right")


def test_programs_leave_no_race(lab: ModuleType) -> None:
    """Each block has a place of its own for what it found."""
    GUMBEL.judged(lab, "races")


def test_each_logit_is_read_once(lab: ModuleType) -> None:
    """One pass over the vocabulary, and little for what the blocks found."""
    GUMBEL.judged(lab, "bytes")


def test_compiles_for_four_gpus(lab: ModuleType) -> None:
    """sm_75, 80, 90 and 100: no spills, loads of 128 bits."""
    GUMBEL.accepted(lab)
    GUMBEL.judged(lab, "compiled", ("compiled",))


@pytest.mark.vllm
def test_draws_as_vllms_kernel(lab: ModuleType) -> None:
    """The same rows, close races among them, through gumbel_sample of vLLM's model runner V2."""
    GUMBEL.accepted(lab)
    GUMBEL.judged(lab, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernel_runs_by_itself(lab: ModuleType, device: str) -> None:
    """show.py, the script of this lab, on this device; on the CPU the noise is numpy's to the bit."""
    GUMBEL.accepted(lab)
    script = Path(__file__).with_name("show.py")
    printed = runs_alone(lab, script, device, "numpy's noise, or draws other tokens", "float32")
    others = int(printed["other numbers"])
    assert device != "cpu" or not others, f"{others} of the noise numbers are not numpy's"
