"""Lab 06-07: a linear layer with 4-bit weights, judged without a GPU by the kernel bench."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from course.kernels.lab import Kernels, runs_alone

pytestmark = [pytest.mark.torch, pytest.mark.triton]
W4A16 = Kernels(
    "w4a16", ["unpack", "multiply_tile"], "a kernel that is right, without races and frugal"
)


def test_the_product_is_right(lab: ModuleType) -> None:
    """Ragged rows, outputs and groups, sums that go far: within rounding of float64."""
    W4A16.judged(lab, "right")


def test_programs_leave_no_race(lab: ModuleType) -> None:
    """Each split has a place of its own for its sums."""
    W4A16.judged(lab, "races")


def test_the_weights_are_read_once(lab: ModuleType) -> None:
    """Packed, and once for all rows; x once for each block of outputs."""
    W4A16.judged(lab, "bytes")


def test_compiles_for_four_gpus(lab: ModuleType) -> None:
    """sm_75, 80, 90 and 100: no spills, loads of 128 bits, tensor cores from sm_80 on."""
    W4A16.accepted(lab)
    W4A16.judged(lab, "compiled", ("compiled",))


@pytest.mark.vllm
def test_agrees_with_vllms_kernel(lab: ModuleType) -> None:
    """The same layers, repacked in AWQ's order, through vLLM's own Triton kernel for 4 bits."""
    W4A16.accepted(lab)
    W4A16.judged(lab, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernel_runs_by_itself(lab: ModuleType, device: str) -> None:
    """show.py, the script of this lab, on this device."""
    W4A16.accepted(lab)
    runs_alone(lab, Path(__file__).with_name("show.py"), device, "the product in float64")
