"""Lab 07-04: the product of a mixture of experts, judged without a GPU by the kernel bench."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from course.kernels.lab import Kernels, runs_alone

pytestmark = [pytest.mark.torch, pytest.mark.triton]
MOE = Kernels("fused-moe", ["moe_kernel"], "a kernel that is right, without races and frugal")


def test_the_products_are_right(lab: ModuleType) -> None:
    """Both products of a layer are within rounding of float64, with a list or without, at ragged sizes."""
    MOE.judged(lab, "right")


def test_programs_leave_no_race(lab: ModuleType) -> None:
    """Programs never store to the same place, because each pair has its own row of the output."""
    MOE.judged(lab, "races")


def test_no_weights_are_read_for_nothing(lab: ModuleType) -> None:
    """An expert's weights are read once for each of its blocks, and never for a block behind the last one."""
    MOE.judged(lab, "bytes")


def test_compiles_for_four_gpus(lab: ModuleType) -> None:
    """For sm_75, 80, 90 and 100 the kernel has no spills, 128-bit loads, and tensor cores from sm_80 on."""
    MOE.accepted(lab)
    MOE.judged(lab, "compiled", ("compiled",))


@pytest.mark.vllm
def test_agrees_with_vllms_kernel(lab: ModuleType) -> None:
    """The kernel agrees with vLLM's own fused_moe_kernel on the same layers and lists."""
    MOE.accepted(lab)
    MOE.judged(lab, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernel_runs_by_itself(lab: ModuleType, device: str) -> None:
    """The lab's script show.py runs the kernel on this device."""
    MOE.accepted(lab)
    runs_alone(lab, Path(__file__).with_name("show.py"), device, "the products in float64")
