"""Lab 04-05: a prefill kernel, judged without a GPU by the kernel bench (`course kernel`)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from course.kernels.lab import Kernels, runs_alone

pytestmark = [pytest.mark.torch, pytest.mark.triton]
PREFILL = Kernels(
    "prefill", ["prefill_kernel"], "prefill_kernel: right, no race, no key behind the frontier"
)


def test_chunks_are_right(lab: ModuleType) -> None:
    """Prompts, chunks that start mid-sequence and GQA come within rounding of float64, with no access
    outside.
    """
    PREFILL.judged(lab, "right")


def test_programs_leave_no_race(lab: ModuleType) -> None:
    """A program writes the rows of its own tokens and heads and no others."""
    PREFILL.judged(lab, "races")


def test_no_key_behind_the_frontier_is_read(lab: ModuleType) -> None:
    """A program asks for K and V once, and only up to its last token."""
    PREFILL.judged(lab, "bytes")


def test_compiles_for_four_gpus(lab: ModuleType) -> None:
    """The kernel compiles for sm_75, 80, 90 and 100: no spills, shared memory fits, loads of 128 bits;
    tensor cores from sm_80.
    """
    PREFILL.accepted(lab)
    PREFILL.judged(lab, "compiled", ("compiled",))


@pytest.mark.vllm
def test_agrees_with_vllms_kernel(lab: ModuleType) -> None:
    """On the same chunks your kernel agrees with vLLM's own Triton kernel."""
    PREFILL.accepted(lab)
    PREFILL.judged(lab, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernel_runs_by_itself(lab: ModuleType, device: str) -> None:
    """The lab's script show.py runs your kernel on this device."""
    PREFILL.accepted(lab)
    runs_alone(lab, Path(__file__).with_name("show.py"), device)
