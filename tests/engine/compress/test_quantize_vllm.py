"""Who reads what `mini-vllm quantize` writes: vLLM on a CPU, and the library compressed-tensors.

On a CPU vLLM has kernels for W8A8 in integers and, where there is AVX-512, for 4-bit weights. For FP8 and for
8-bit weights alone it has none, so for those the library must suffice: it decompresses each layer to exactly
our numbers.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.compress.quantize import METHODS, find_method, quantize_weights
from mini_vllm.compress.quantize import quantize_checkpoint as write
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.quantization.grid import QuantizedWeight
from mini_vllm.model_loader import load_config, load_weights
from tests.engine.helpers.quantization.quantized_helpers import (
    cases,
    quantized_weight,
    write_quantized,
)
from tests.engine.helpers.real_vllm.vllm_helpers import cpu_kernels, output_of, skip_unless_right

pytestmark = pytest.mark.vllm
PROMPTS = ["Once upon a time", "The scheduler", "A block of the cache", "A request"]
TOKENS = 16
RUNS = {  # a method, and the dtype that its kernel on a CPU takes
    "w8a8": "float32",
    "smoothquant-w8a8": "float32",
    "int4-g128": "float16",
    "int4-g32": "float16",
    "gptq": "float16",
    "awq-g64": "float16",
    # Not from the command: layouts that the writers know besides.
    "w4a16-asym": "float16",
    "gptq-desc": "float16",
}
LIBRARY = ["w4a16-asym", "w4a16-actorder", "w8a16-asym"]
"""Layouts of compressed-tensors beyond the command, in groups of 32 or a row."""
REFUSED = {"int8": "float16", "fp8": "float32"}
BESIDE = {name: case for name, case in cases(32).items() if name not in METHODS}
FOUR_BITS = "CPUWNA16LinearKernel"
BITS = {name: 8 if dtype == "float32" else 4 for name, dtype in RUNS.items()}


@functools.cache
def folder() -> Path:
    """Every checkpoint of this file, quantised from the shipped one."""
    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    for name in {*RUNS, *REFUSED} - BESIDE.keys():
        write(DEFAULT_MODEL, place / name, name)
    for name in BESIDE.keys() & {*RUNS, *LIBRARY}:
        write_quantized(DEFAULT_MODEL, place / name, BESIDE[name])
    return place


@functools.cache
def played() -> dict[str, Any]:
    """All of them in one process: starting vLLM is what takes the time."""
    names = {**RUNS, **REFUSED}
    job = [
        {"folder": str(folder() / name), "dtype": dtype, "prompts": PROMPTS, "max_tokens": TOKENS}
        for name, dtype in names.items()
    ]
    script = Path(__file__).parents[1] / "helpers" / "quantization" / "quantized_vllm.py"
    line = output_of(script, json.dumps(job)).split("ANSWER ")[1]
    return dict(zip(names, json.loads(line), strict=True))


@functools.cache
def ours(name: str) -> tuple[list[list[int]], list[list[float]]]:
    """Greedy tokens and the prompts' log probabilities of `mini_vllm` on the same folder."""
    params = SamplingParams(temperature=0, max_tokens=TOKENS, prompt_logprobs=0)
    outputs = LLM(folder() / name, num_gpu_blocks=64).generate(PROMPTS, params)
    return (
        [list(o.outputs[0].token_ids) for o in outputs],
        [
            [next(iter(at.values())).logprob for at in o.prompt_logprobs or () if at]
            for o in outputs
        ],
    )


@pytest.mark.parametrize("name", RUNS)
def test_vllm_gives_the_same_tokens_on_the_same_files(name: str) -> None:
    answer = played()[name]
    if BITS[name] == 4 and not cpu_kernels().four_bits:
        assert "cpu_gemm_wna16" in answer["error"]
    skip_unless_right(BITS[name])
    assert "error" not in answer, answer.get("error")
    tokens, logprobs = ours(name)
    assert answer["tokens"] == tokens
    apart = sorted(
        abs(a - b)
        for mine, theirs in zip(logprobs, answer["logprobs"], strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )
    if RUNS[name] == "float32":
        # W8A8 differs by the order of sums alone. Where that puts an activation on the other side of the
        # border between two of its 255 steps, one position differs by more.
        assert apart[-1 - len(apart) // 10] < 1e-3
    assert apart[-1] < 0.05  # 4-bit kernels multiply in 16 bits


def test_which_kernel_vllm_selected_for_int8() -> None:
    answers = played()
    w8a8 = ["CompressedTensorsLinearMethod", "CompressedTensorsW8A8Int8"]
    for name in ("w8a8", "smoothquant-w8a8"):
        assert answers[name]["classes"][:2] == w8a8
    # The log names a kernel once a process, at the first layer that gets it.
    kernel = "CPUInt8ScaledMMLinearKernel"
    assert answers["w8a8"]["said"] == [f"Selected {kernel} for CompressedTensorsW8A8Int8"]


def test_which_kernel_vllm_selected_for_each_layout_in_four_bits() -> None:
    skip_unless_right(bits=4)
    answers = played()
    classes = {name: answers[name]["classes"] for name in RUNS}
    wna16 = ["CompressedTensorsLinearMethod", "CompressedTensorsWNA16", FOUR_BITS]
    assert classes["int4-g128"] == classes["int4-g32"] == classes["w4a16-asym"] == wna16
    assert classes["gptq"] == classes["gptq-desc"] == ["AutoGPTQLinearMethod", FOUR_BITS]
    # AWQ has a method of its own on a CPU, which calls the 4-bit kernel without a choice.
    assert classes["awq-g64"] == ["CPUAWQLinearMethod"]
    assert answers["int4-g128"]["said"] == [f"Using {FOUR_BITS} for CompressedTensorsWNA16"]
    assert answers["gptq"]["said"] == [f"Using {FOUR_BITS} for AutoGPTQLinearMethod"]


@pytest.mark.parametrize("name", REFUSED)
def test_vllm_reads_the_config_and_has_no_kernel_on_a_cpu(name: str) -> None:
    error = played()[name]["error"]
    kind = {"int8": "WNA16", "fp8": "ScaledMM"}[name]
    assert f"Failed to find a kernel that can implement the {kind} linear layer" in error


# -- the library ----------------------------------------------------------------------------------


@functools.cache
def written_layers(name: str) -> dict[str, QuantizedWeight]:
    """The layers of a method that looks at no text, once more."""
    weights = load_weights(DEFAULT_MODEL)
    if name in BESIDE:
        return {
            layer.removesuffix(".weight"): quantized_weight(weight, BESIDE[name])
            for layer, weight in weights.items()
            if layer.endswith("_proj.weight")
        }
    return quantize_weights(load_config(DEFAULT_MODEL), weights, find_method(name))[0]


@pytest.mark.parametrize("name", ["int8", "int4-g128", "int4-g32", "w8a8", "fp8", *LIBRARY])
def test_the_library_reads_config_and_tensors_and_gets_exactly_our_weights(name: str) -> None:
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file

    raw = json.loads((folder() / name / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(raw)
    scheme = config.config_groups["group_0"]
    fmt = BESIDE[name].fmt if name in BESIDE else find_method(name).fmt
    assert config.format == fmt
    tensors = load_file(folder() / name / "model.safetensors")
    compressor: Any = BaseCompressor.get_value_from_registry(config.format)
    for layer, weight in written_layers(name).items():
        part = f"{layer}."
        state = {n.removeprefix(part): t for n, t in tensors.items() if n.startswith(part)}
        # It computes in the dtype of the scale; in float32 a product of two numbers is what ours is.
        state["weight_scale"] = state["weight_scale"].to(torch.float32)
        theirs = compressor.decompress(state, scheme)["weight"]
        assert theirs.dtype == torch.float32
        assert np.array_equal(theirs.numpy(), weight.dequantize()), layer


@pytest.mark.parametrize("name", ["int8", "int4-g32", "w8a8", "fp8"])
def test_the_library_would_have_written_the_same_bytes(name: str) -> None:
    """Its compressor, given the weights and our scales, makes our tensors."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file

    raw = json.loads((folder() / name / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(raw)
    tensors = load_file(folder() / name / "model.safetensors")
    compressor: Any = BaseCompressor.get_value_from_registry(config.format)
    weights = load_weights(DEFAULT_MODEL)
    for layer, weight in written_layers(name).items():
        state = {
            "weight": torch.from_numpy(weights[f"{layer}.weight"].copy()),
            "weight_scale": torch.from_numpy(weight.scale),
        }
        for part, theirs in compressor.compress(state, config.config_groups["group_0"]).items():
            mine = tensors[f"{layer}.{part}"]
            if part != "weight_scale":
                assert mine.dtype == theirs.dtype
                assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8)), (layer, part)
