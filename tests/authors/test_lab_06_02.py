"""Lab 06-02: bytes of a layer, the way back and what a kernel takes, as the lab gives them."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from tests.engine.helpers.real_vllm.vllm_helpers import output_of, skip_unless_right

LAB = ROOT / "phase-06-quantization/labs/lab-02-int4-groups-and-packing"
support = load_module(LAB / "support.py", "test_lab_06_02_support")


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_06_02_starter")


def test_bytes_of_a_layer_are_those_of_the_file(lab: ModuleType) -> None:
    """Tensor by tensor, against whole checkpoints as vLLM reads them."""
    for grid, group_size in (*((grid, 64) for grid in support.GRIDS), ("gptq", -1)):
        for name in ("model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"):
            out, inp = support.linear_weights()[name].shape
            tensors = support.written(grid, group_size)[name]
            expected = {part: tensor.nbytes for part, tensor in tensors.items()}
            sizes = lab.layer_bytes(grid.split(",")[0], out, inp, group_size, support.GRIDS[grid])
            assert sizes == expected, (
                f"{grid}, [{out}, {inp}], group size {group_size}: the file has {expected}, you say "
                f"{sizes}"
            )
            assert not any(isinstance(n, float) for n in sizes.values()), f"whole bytes: {sizes}"
    default = lab.layer_bytes("pack-quantized", 64, 128, 32)
    assert "weight_zero_point" not in default, "symmetric unless told otherwise"


def test_dequantizing_by_hand(lab: ModuleType) -> None:
    """(code - zero point) * scale, each column with its own group's."""
    codes = np.array([[0, 8, 15, 9], [3, 4, 5, 6]], np.int32)
    scale = np.array([[1.0, 10.0], [0.5, 2.0]], np.float32)
    zero_point = np.array([[8, 9], [3, 8]], np.int32)
    back = lab.dequantize_groups(codes, scale, zero_point)
    assert back.dtype == np.float32, f"{back.dtype}, not float32"
    want = [[-8, 0, 60, 0], [0, 0.5, -6, -4]]
    assert back.tolist() == want, f"{back.tolist()}, not {want}; columns 0 and 1 are group 0"


def test_which_groups_the_shipped_layers_admit(lab: ModuleType) -> None:
    """All four layers, on each kernel: what is left of ten sizes."""
    sizes = (2, 16, 32, 48, 64, 96, 128, 256, 384, -1)
    want = {"marlin": [32, 64, 128, -1], "machete": [64, 128, -1], "cpu": [2, 16, 32, 64, 128, -1]}
    for kernel, expected in want.items():
        got = [
            size
            for size in sizes
            if not any(lab.refused_by(kernel, o, i, size) for o, i in support.as_run().values())
        ]
        assert got == expected, f"{kernel} takes groups of {expected} everywhere, you say {got}"
    down = support.as_run()["down"]
    for size, expected in ((48, []), (96, []), (384, []), (256, ["group_size"])):
        refused = lab.refused_by("cpu", *down, size)
        assert refused == expected, f"down_proj, 384 inputs, group of {size} on a CPU: {refused}"


def test_which_shapes_a_kernel_takes(lab: ModuleType) -> None:
    """One GPU's part of a layer may be what a kernel refuses."""
    for kernel, out, inp, size, expected in (
        ("marlin", 64, 128, 32, []),
        ("machete", 64, 128, 64, ["out_features"]),
        ("marlin", 4096, 11008 // 2, 128, []),
        ("marlin", 4096, 11008 // 4, 128, ["group_size", "in_features"]),
        ("marlin", 4096, 11008 // 4, 64, ["in_features"]),
        ("machete", 4096, 11008 // 4, 64, []),
        ("machete", 128, 64, 64, []),
        ("marlin", 32, 64, -1, ["in_features", "out_features"]),
        ("machete", 64, 32, 16, ["group_size", "in_features", "out_features"]),
        ("cpu", 32, 32, -1, []),
        ("cpu", 32, 32, 16, []),
        ("cpu", 48, 64, 32, ["out_features"]),
        ("cpu", 64, 48, 16, ["in_features"]),
        ("cpu", 32, 96, 3, ["group_size"]),
        ("marlin", 64, 128, 16, ["group_size"]),
        ("machete", 128, 128, 32, ["group_size"]),
    ):
        refused = lab.refused_by(kernel, out, inp, size)
        assert list(refused) == expected, (
            f"{kernel}, [{out}, {inp}] in groups of {size}: {expected} break a rule, you say {refused}"
        )


@pytest.mark.vllm
def test_with_amx_vllm_packs_awqs_words_another_way() -> None:
    """Without it 16 outputs lie together in words, with it bytes of 4-bit codes and their sums."""
    skip_unless_right(4)  # the extension without AVX-512 cannot pack them either
    code = """
from types import SimpleNamespace
from unittest.mock import patch
import torch
from vllm.model_executor.layers.quantization.cpu_wna16 import CPUAWQLinearMethod

method = CPUAWQLinearMethod(SimpleNamespace(weight_bits=4, pack_factor=8, zero_point=True))
for amx in (False, True):
    layer = torch.nn.Module()
    for name, shape in ("qweight", (64, 8)), ("qzeros", (2, 8)):
        words = torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)
        layer.register_parameter(name, torch.nn.Parameter(words, requires_grad=False))
    layer.scales = torch.nn.Parameter(torch.rand(2, 64).bfloat16(), requires_grad=False)
    with patch("torch.cpu._is_amx_tile_supported", lambda: amx):
        method.process_weights_after_loading(layer)
    packed = layer.packed_weight if amx else layer.qweight
    print(amx, packed.dtype, tuple(packed.shape))
"""
    assert output_of("-c", code, VLLM_CPU_INT4_W4A8="1").splitlines()[-2:] == [
        "False torch.int32 (4, 128)",
        "True torch.uint8 (2, 2, 640)",
    ]
