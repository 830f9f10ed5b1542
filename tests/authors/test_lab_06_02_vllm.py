"""What lab 06-02 says of vLLM's kernels: its rules against those of the installed vLLM."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType

import pytest

from course.learner.labs import load_module

LAB = (
    Path(__file__).resolve().parents[2]
    / "phase-06-quantization/labs/lab-02-int4-groups-and-packing"
)
SHAPES = (32, 48, 64, 96, 128, 192, 256, 384, 2752, 4096, 5504, 11008)
SIZES = (-1, 16, 32, 48, 64, 96, 128, 256)


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "solution.py", "lab_06_02_beside_vllm")


@pytest.mark.vllm
def test_marlins_and_machetes_rules(lab: ModuleType) -> None:
    """Their checks of shapes and sizes are plain Python, so they answer without a GPU."""
    import torch
    from vllm.model_executor.layers.quantization.utils import machete_utils, marlin_utils

    for out, inp, size in itertools.product(SHAPES, SHAPES, SIZES):
        if size != -1 and inp % size:
            assert "group_size" in lab.refused_by("marlin", out, inp, size)
            continue  # no file has such a layer
        marlin = size in marlin_utils.MARLIN_SUPPORTED_GROUP_SIZES
        marlin = marlin and marlin_utils.check_marlin_supports_shape(out, inp, inp, size)[0]
        machete = size in machete_utils.query_machete_supported_group_sizes(torch.float16)
        machete = machete and machete_utils.check_machete_supports_shape(inp, out)[0]
        for kernel, takes in (("marlin", marlin), ("machete", machete)):
            refused = lab.refused_by(kernel, out, inp, size)
            assert (not refused) == takes, f"{kernel}, [{out}, {inp}], {size}: {refused}, {takes}"


@pytest.mark.vllm
def test_the_cpus_rules(lab: ModuleType) -> None:
    """On a CPU build the kernel itself answers."""
    import torch
    from vllm.model_executor.kernels.linear import MPLinearLayerConfig
    from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
    from vllm.platforms import current_platform
    from vllm.scalar_type import scalar_types

    if not current_platform.is_cpu():
        pytest.skip("vLLM is built for something else than a CPU")
    for out, inp, size in itertools.product(SHAPES, SHAPES, SIZES):
        config = MPLinearLayerConfig(
            full_weight_shape=(inp, out), partition_weight_shape=(inp, out),
            weight_type=scalar_types.uint4b8, act_type=torch.float16, group_size=size,
            zero_points=False, has_g_idx=False,
        )  # fmt: skip
        takes, why = CPUWNA16LinearKernel.can_implement(config)
        refused = lab.refused_by("cpu", out, inp, size)
        assert (not refused) == (takes and (size == -1 or inp % size == 0)), f"{refused}, {why}"
