"""Lab 07-04: the product of a mixture of experts, judged without a GPU by the kernel bench."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from course.kernels.lab import Kernels, runs_alone

pytestmark = [pytest.mark.torch, pytest.mark.triton]
MOE = Kernels("fused-moe", ["moe_kernel"], "a kernel that is right, without races and frugal")


def test_the_products_are_right(lab: ModuleType) -> None:
    """With a list and without, both products of a layer, ragged sizes: within rounding of float64."""
    MOE.judged(lab, "right")


def test_programs_leave_no_race(lab: ModuleType) -> None:
    """Each pair has a row of its own."""
    MOE.judged(lab, "races")


def test_no_weights_are_read_for_nothing(lab: ModuleType) -> None:
    """An expert's weights once for each of its blocks, and for no block behind the last."""
    MOE.judged(lab, "bytes")


def test_compiles_for_four_gpus(lab: ModuleType) -> None:
    """sm_75, 80, 90 and 100: no spills, loads of 128 bits, tensor cores from sm_80 on."""
    MOE.accepted(lab)
    MOE.judged(lab, "compiled", ("compiled",))


@pytest.mark.vllm
def test_agrees_with_vllms_kernel(lab: ModuleType) -> None:
    """The same layers and lists through vLLM's own fused_moe_kernel."""
    MOE.accepted(lab)
    MOE.judged(lab, "right", ("right",), vllm=True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_your_kernel_runs_by_itself(lab: ModuleType, device: str) -> None:
    """show.py, the script of this lab, on this device."""
    MOE.accepted(lab)
    runs_alone(lab, Path(__file__).with_name("show.py"), device, "the products in float64")
