"""Quantised checkpoints in torch (`mini_vllm/gpu/quantization.py`) and on the Triton kernel (`wna16.py`).

Each test that runs something runs on the CPU, kernels under Triton's interpreter, and on a GPU where there is
one; the device is the only difference.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.compress.quantize import linear_names, quantize_checkpoint
from mini_vllm.compress.save import save_quantized
from mini_vllm.layers.quantization.grid import QuantArgs, QuantizedWeight, round_to_nearest
from mini_vllm.model_loader import load_config, load_model, load_weights
from tests.engine.helpers.models.model_helpers import (
    greedy,
    relative_error,
    texts,
    whole,
    write_checkpoint,
)

ROOT = Path(__file__).resolve().parents[3]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
GROUPS = QuantArgs(4, strategy="group", group_size=16, scale_dtype="float16")
FORMATS: dict[str, tuple[Any, QuantArgs]] = {
    "int4": ("pack-quantized", GROUPS),
    "int8": ("pack-quantized", QuantArgs(8, strategy="channel")),
    "gptq": ("gptq", GROUPS),
    "gptq, act-order": ("gptq", GROUPS),
    "awq": ("awq", replace(GROUPS, symmetric=False)),
    "w8a8": ("int-quantized", QuantArgs(8, strategy="channel")),
    "fp8": ("float-quantized", QuantArgs(8, "float", strategy="channel")),
}
PROMPT = [5, 17, 3, 40, 8]
STEPS = 5


def checkpoint(folder: Path, name: str) -> Path:
    """A small random checkpoint in the format `name`, with biases on the attention layers."""
    plain, out = folder / "plain", folder / name
    if not plain.exists():
        write_checkpoint(plain, seed=4, num_hidden_layers=1, attention_bias=True)
    if out.exists():
        return out
    fmt, args = FORMATS[name]
    config, weights = load_config(plain), load_weights(plain)
    layers = {
        each: round_to_nearest(weights[f"{each}.weight"], args) for each in linear_names(config)
    }
    if name == "gptq, act-order":
        layers = {each: act_ordered(weights[f"{each}.weight"]) for each in layers}
    rest = {n: w for n, w in weights.items() if n.removesuffix(".weight") not in layers}
    save_quantized(plain, out, layers, rest, fmt)
    return out


def act_ordered(weight: np.ndarray) -> QuantizedWeight:
    """Groups of columns that are no neighbours; the same groups for every layer of so many inputs."""
    inputs = weight.shape[1]
    order = np.random.default_rng(inputs).permutation(inputs)
    sorted_ones = round_to_nearest(weight[:, order], GROUPS)
    codes, g_idx = np.empty_like(sorted_ones.codes), np.empty(inputs, np.int32)
    codes[:, order], g_idx[order] = sorted_ones.codes, np.arange(inputs) // 16
    return QuantizedWeight(codes, sorted_ones.scale, None, GROUPS, g_idx)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantized")


def ask(what: str, cases: list[dict[str, Any]]) -> list[Any]:
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests/engine",
    }
    env["TRITON_INTERPRET"] = "1" if what in ("cpu", "log") else "0"
    if what != "cuda":
        env["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-W", "ignore", "tests/engine/helpers/gpu/gpu_quant_child.py", what]
    ran = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, env=env, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: list[Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


# -- models ------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FORMATS)
def test_torch_computes_what_numpy_computes(folder: Path, name: str, device: str) -> None:
    """Every format: logits of a prompt, and greedy tokens."""
    from tests.engine.helpers.gpu.torch_helpers import TorchServer, torch_model

    saved = checkpoint(folder, name)
    ours = load_model(saved)
    theirs = load_model(saved, None, torch_model(device))
    prompt = texts(ours, (23,))["r0"]
    error = relative_error(whole(theirs, prompt, TorchServer), whole(ours, prompt))
    assert error < 1e-5, f"{name} is off by {error:.1e}"
    assert greedy(theirs, PROMPT, STEPS, TorchServer) == greedy(ours, PROMPT, STEPS)


@pytest.mark.torch
@pytest.mark.parametrize("device", DEVICES)
def test_16_bits_keep_the_weights_packed(folder: Path, device: str) -> None:
    import torch

    from tests.engine.helpers.gpu.torch_helpers import TorchServer, torch_model

    saved = checkpoint(folder, "int4")
    ours = load_model(saved)
    theirs: Any = load_model(saved, None, torch_model(device, dtype=torch.float16))
    prompt = texts(ours, (23,))["r0"]
    error = relative_error(whole(theirs, prompt, TorchServer), whole(ours, prompt))
    assert 1e-5 < error < 5e-3, f"off by {error:.1e}"
    layer = theirs.layers[0].mlp.down_proj.apply
    assert (layer.weight_packed.dtype, layer.weight_packed.shape) == (torch.int32, (32, 48 // 8))
    assert (layer.weight_scale.dtype, layer.weight_scale.stride()) == (torch.float16, (1, 32))


@pytest.mark.torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "scale", "zero_point"),
    [("w8a8", 0.05, None), ("w8a8", 0.02, -20), ("fp8", 0.02, None)],
)
def test_activations_scale_may_be_in_the_file(
    folder: Path,
    name: str,
    scale: float | None,
    zero_point: int | None,
    device: str,
    tmp_path: Path,
) -> None:
    """Beside numpy; some numbers are beyond the last code."""
    import torch

    from mini_vllm.gpu.quantization import QuantizedLinear
    from tests.engine.helpers.quantization.quantized_layouts import (
        ROWS,
        STATIC,
        be_static,
        change_group,
    )

    saved = tmp_path / "static"
    shutil.copytree(checkpoint(folder, name), saved)
    if scale is None:
        change_group(saved, input_activations=ROWS)
    else:
        be_static(saved, scale, zero_point)
    if name == "fp8":
        change_group(saved, input_activations=STATIC | {"type": "float"})
    layer = load_model(saved).layers[0].self_attn.qkv_proj
    theirs = QuantizedLinear(layer, torch.float32, torch.device(device), kernel=False)
    x = np.random.default_rng(3).standard_normal((9, layer.input_size)).astype(np.float32) * 3
    got = theirs(torch.from_numpy(x).to(device)).cpu().numpy()
    np.testing.assert_allclose(got, layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("device", DEVICES)
def test_a_row_of_next_to_nothing_spoils_no_product(folder: Path, device: str) -> None:
    """W8A8: 1 divided by its scale would be infinite, and infinity times the 0 beside it NaN."""
    import torch

    from tests.engine.helpers.gpu.torch_helpers import torch_model

    model: Any = load_model(checkpoint(folder, "w8a8"), None, torch_model(device))
    x = torch.zeros(2, 32, device=device)
    x[0, :2] = torch.tensor([1e-38, -1e-38])
    found = model.layers[0].mlp.gate_up_proj(x)
    assert found.abs().max() < 1e-35


@pytest.mark.torch
@pytest.mark.triton
def test_groups_that_the_kernel_cannot_take_are_refused_on_loading(folder: Path) -> None:
    """A word holds eight codes of 4 bits, and the kernel wants one scale for all of them."""
    import torch

    from mini_vllm.gpu.quantization import QuantizedLinear

    checkpoint(folder, "int4")
    quantize_checkpoint(folder / "plain", folder / "int4-g4", "int4-g4")
    layer = load_model(folder / "int4-g4").layers[0].self_attn.qkv_proj
    says = r"layers.0.self_attn.q_proj: the Triton kernel cannot take it: 32 inputs in 8 groups"
    with pytest.raises(ValueError, match=says):
        QuantizedLinear(layer, torch.float32, torch.device("cpu"), kernel=True)
    assert QuantizedLinear(layer, torch.float32, torch.device("cpu"), kernel=False).apply


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.parametrize("device", DEVICES)
def test_the_kernel_gives_numpys_tokens(folder: Path, device: str) -> None:
    """Weight-only formats go through the kernel, and the others do not."""
    cases = [
        {"folder": str(checkpoint(folder, name)), "prompt": PROMPT, "steps": STEPS}
        for name in FORMATS
    ]
    for name, found in zip(FORMATS, ask(device, cases), strict=True):
        assert found["tokens"] == greedy(load_model(checkpoint(folder, name)), PROMPT, STEPS), name
        weight_only = name not in ("w8a8", "fp8")
        assert found["kernel"] == weight_only, f"{name}: {found['layers']}"


# -- the kernel --------------------------------------------------------------------------------------

BASE = {"rows": 3, "inputs": 128, "outputs": 40, "group": 32, "bits": 4, "dtype": "float32"}
GEMMS: list[dict[str, Any]] = [
    BASE,
    BASE | {"dtype": "float16", "rows": 1, "inputs": 512, "outputs": 130, "group": 128},
    BASE | {"bits": 8, "rows": 17, "inputs": 120, "group": 24},
    BASE | {"zero": True, "rows": 33, "inputs": 96, "group": 48, "outputs": 7},
    BASE | {"zero": True, "bits": 8, "dtype": "float16", "inputs": 256, "group": 256},
    BASE | {"plan": [16, 16, 16, 1], "inputs": 144, "group": 72},
    BASE | {"plan": [32, 64, 64, 4], "inputs": 384, "group": 128, "rows": 40, "dtype": "float16"},
    BASE | {"plan": [16, 32, 128, 3], "inputs": 320, "group": 40, "strided": False},
    BASE | {"bits": 8, "inputs": 12, "group": 4, "outputs": 5},
]  # fmt: skip


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.parametrize("device", DEVICES)
def test_any_shape_agrees_with_float64(device: str) -> None:
    """Rows, outputs and groups beside the tiles, splits that do not divide, zero points, both widths."""
    for case, found in zip(GEMMS, ask(device, GEMMS), strict=True):
        assert "refused" not in found, f"{case}: {found}"
        bound = 1e-6 if case["dtype"] == "float32" else 1e-3
        assert found["error"] < bound, f"{case}: wrong by {found['error']:.1e}"
        assert found["dtype"] == case["dtype"], case


@pytest.mark.torch
@pytest.mark.triton
def test_machine_code_of_four_architectures() -> None:
    """No spills, wide loads, tensor cores, and weights that become float16 in registers: nothing is
    converted, and next to nothing stored in shared memory."""
    shape = {"inputs": 4096, "outputs": 4096, "group": 128}
    cases = [
        shape | {"rows": 1, "bits": 4},
        shape | {"rows": 16, "bits": 8},
        shape | {"rows": 16, "bits": 4, "zero": True},
        shape | {"rows": 256, "bits": 4},
    ]
    for case, rows in zip(cases, ask("compiled", cases), strict=True):
        assert {row["capability"] for row in rows} == {75, 80, 90, 100}
        for row in rows:
            assert row["spills"] == 0, (case, row)
            assert row["wide"] > 0.5, (case, row)
            assert row["I2F"] == 0, (case, row)
            if row["kernel"] == "wna16_kernel" and row["capability"] >= 80:
                assert row["tensor core"] > 0, (case, row)
                assert row["STS"] <= 4, (case, row)


@pytest.mark.torch
@pytest.mark.triton
def test_one_row_costs_at_most_five_percent_more_than_the_least() -> None:
    """x once for each program, and the sums of four splits, beside weights, scales and result once."""
    cases = [
        {"rows": 1, "inputs": 4096, "outputs": 1024, "group": 128, "bits": bits} for bits in (4, 8)
    ]
    for case, found in zip(cases, ask("log", cases), strict=True):
        assert found["launches"] == 2, "the inputs are split, so a second kernel adds"
        assert found["least"] < found["bytes"] <= 1.05 * found["least"], (case, found)


@pytest.mark.torch
@pytest.mark.triton
def test_the_bench_accepts_the_kernel() -> None:
    """Right on the bench's ragged cases, no race, and weights read once for all rows. Machine code: below."""
    from course.kernels import judge

    kernel = ROOT / "mini_vllm" / "gpu" / "kernels" / "wna16.py"
    report = judge(kernel, "w4a16", ("right", "races", "bytes"), vllm=False)
    assert report.ok, report.refusals()
    [traffic] = report.of("bytes")
    assert traffic.figures["ratio"] <= 1.05, traffic.message


# -- plans and errors, without a kernel --------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.parametrize(
    ("shape", "sms", "expected"),
    [
        ((1, 4096, 4096, 128), 132, (16, 128, 128, 4)),
        ((1, 28672, 4096, 128), 132, (16, 128, 128, 1)),
        ((1, 4096, 14336, 128), 58, (16, 128, 128, 1)),
        ((32, 4096, 4096, 64), 132, (32, 128, 64, 4)),
        ((256, 4096, 4096, 128), 132, (64, 128, 128, 1)),
        ((1, 128, 128, 128), 132, (16, 128, 128, 1)),
    ],
)
def test_a_plan_fills_the_gpu(shape: tuple[int, ...], sms: int, expected: tuple[int, ...]) -> None:
    """Splits where outputs alone make too few programs, and never shorter than four trips."""
    from mini_vllm.gpu.kernels.wna16 import plan_wna16

    plan = plan_wna16(*shape, num_sms=sms)
    assert (plan.block_m, plan.block_n, plan.block_k, plan.splits) == expected


@pytest.mark.torch
@pytest.mark.triton
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bits": 3}, "bits is 4 or 8, got 3"),
        ({"x": (2, 72)}, "8 words of 8 codes are 64 inputs, and x has 72"),
        ({"weight_scale": (5, 16)}, "64 inputs in 16 groups: a group is a multiple of the 8 codes"),
        ({"weight_scale": (6, 2)}, "weight_packed has 5 outputs, and weight_scale 6"),
        ({"weight_packed": (5,)}, r"got \[2, 64\], \[5\], \[5, 2\]"),
        (
            {"zero_point": (5, 1)},
            r"zero_point is \[5, 2\] of uint8, like weight_scale, got \[5, 1\]",
        ),
        ({"out": (2, 4)}, r"out is \[2, 5\] of torch.float32 without gaps, got \[2, 4\]"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], said: str) -> None:
    import torch

    from mini_vllm.gpu.kernels.wna16 import wna16_gemm

    shapes: dict[str, Any] = {"x": (2, 64), "weight_packed": (5, 8), "weight_scale": (5, 2)}
    kinds = {"weight_packed": torch.int32, "zero_point": torch.uint8}
    bits = changes.get("bits", 4)
    given = {
        name: torch.zeros(shape, dtype=kinds.get(name, torch.float32))
        for name, shape in (shapes | changes).items()
        if name != "bits"
    }
    with pytest.raises(ValueError, match=said):
        wna16_gemm(**given, bits=bits)
