"""Lab 04-06: a split and a merge kernel, judged without a GPU by the kernel bench (`course kernel`)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from course.kernels.lab import Kernels, runs_alone

pytestmark = [pytest.mark.torch, pytest.mark.triton]
SPLIT = Kernels(
    "split-decode",
    ["split_kernel", "merge_kernel"],
    "both kernels: right, no race, each byte once",
)


def test_the_merged_result_is_right(lab: ModuleType) -> None:
    """Any split, ragged lengths and empty splits come within rounding of float64; a program has one split."""
    SPLIT.judged(lab, "right")


def test_programs_leave_no_race(lab: ModuleType) -> None:
    """Each split has a place of its own for its state, and each head its own result."""
    SPLIT.judged(lab, "races")


def test_each_byte_is_read_once(lab: ModuleType) -> None:
    """The kernels read K and V once for all query heads that share them, and little for the states."""
    SPLIT.judged(lab, "bytes")


def test_compiles_for_four_gpus(lab: ModuleType) -> None:
    """Both kernels compile for sm_75, 80, 90 and 100: no spills, shared memory fits, loads of 128 bits."""
    SPLIT.accepted(lab)
    SPLIT.judged(lab, "compiled", ("compiled",))


@pytest.mark.vllm
def test_agrees_with_vllms_kernel(lab: ModuleType) -> None:
    """On the same cases your kernels agree with vLLM's own Triton kernel, 2D and segmented."""
    SPLIT.accepted(lab)
    SPLIT.judged(lab, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernel_runs_by_itself(lab: ModuleType, device: str) -> None:
    """The lab's script show.py runs your kernels on this device."""
    SPLIT.accepted(lab)
    runs_alone(lab, Path(__file__).with_name("show.py"), device)
