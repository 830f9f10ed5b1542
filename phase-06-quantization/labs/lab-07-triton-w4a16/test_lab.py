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
    """The product is within rounding of float64's, with ragged rows, outputs and groups and large sums."""
    W4A16.judged(lab, "right")


def test_programs_leave_no_race(lab: ModuleType) -> None:
    """Each split writes its sums to its own place, so programs do not race."""
    W4A16.judged(lab, "races")


def test_the_weights_are_read_once(lab: ModuleType) -> None:
    """The weights are read packed, once for all rows, and x once per block of outputs."""
    W4A16.judged(lab, "bytes")


def test_compiles_for_four_gpus(lab: ModuleType) -> None:
    """The kernel compiles for sm_75, 80, 90 and 100: no spills, 128-bit loads, tensor cores from sm_80 on."""
    W4A16.accepted(lab)
    W4A16.judged(lab, "compiled", ("compiled",))


@pytest.mark.vllm
def test_agrees_with_vllms_kernel(lab: ModuleType) -> None:
    """The product agrees with vLLM's own 4-bit Triton kernel on the same layers, repacked in AWQ's order."""
    W4A16.accepted(lab)
    W4A16.judged(lab, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernel_runs_by_itself(lab: ModuleType, device: str) -> None:
    """This lab's script show.py runs your kernel on this device."""
    W4A16.accepted(lab)
    runs_alone(lab, Path(__file__).with_name("show.py"), device, "the product in float64")
