"""Lab 02-06: two kernels, judged without a GPU by the kernel bench (`course kernel`)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from course.kernels.lab import Kernels, runs_alone

pytestmark = [pytest.mark.torch, pytest.mark.triton]
ONE = Kernels(
    "decode-one", ["softmax_step"], "softmax_step: decode_one_kernel right, no race, each byte once"
)
BATCH = Kernels(
    "decode", ["decode_kernel"], "decode_kernel: right, no race, each byte once", after=ONE
)


def test_one_sequence_is_right(lab: ModuleType) -> None:
    """For one sequence, the result is within rounding of float64, and no access is out of bounds."""
    ONE.judged(lab, "right")


def test_one_sequence_leaves_no_race(lab: ModuleType) -> None:
    """For one sequence, no program writes what another reads or writes."""
    ONE.judged(lab, "races")


def test_one_sequence_reads_each_byte_once(lab: ModuleType) -> None:
    """For one sequence, the bytes loaded and stored stay near the minimum."""
    ONE.judged(lab, "bytes")


def test_batch_is_right(lab: ModuleType) -> None:
    """For many sequences, the result is within rounding of float64, and no access is out of bounds."""
    BATCH.judged(lab, "right")


def test_batch_leaves_no_race(lab: ModuleType) -> None:
    """For many sequences, a program writes the rows of its own query heads and no others."""
    BATCH.judged(lab, "races")


def test_batch_reads_each_byte_once(lab: ModuleType) -> None:
    """For many sequences, K and V are read once for all query heads that share them."""
    BATCH.judged(lab, "bytes")


@pytest.mark.parametrize("problem", [ONE, BATCH], ids=lambda kernels: kernels.problem)
def test_compiles_for_four_gpus(lab: ModuleType, problem: Kernels) -> None:
    """The kernel compiles for sm_75, 80, 90 and 100: no spills, shared memory fits, 128-bit loads."""
    problem.accepted(lab)
    problem.judged(lab, "compiled", ("compiled",))


@pytest.mark.vllm
def test_batch_agrees_with_vllms_kernel(lab: ModuleType) -> None:
    """The kernel agrees with vLLM's own Triton kernel, 2D and segmented, on the same cases."""
    BATCH.accepted(lab)
    BATCH.judged(lab, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernel_runs_by_itself(lab: ModuleType, device: str) -> None:
    """show.py, the script of this lab, runs your kernel on this device."""
    BATCH.accepted(lab)
    runs_alone(lab, Path(__file__).with_name("show.py"), device)
