"""Quantised copies of a checkpoint, rounded to nearest, in every layout that is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.compress.save import Format, save_quantized
from mini_vllm.layers.quantization.grid import (
    QuantArgs,
    QuantizedWeight,
    choose_scales,
    quantize,
    round_to_nearest,
)
from mini_vllm.model_loader import load_config, load_weights


@dataclass(frozen=True)
class Case:
    """A layout, its grid, and whether columns are shuffled among the groups."""

    fmt: Format
    args: QuantArgs
    shuffled: bool = False


def cases(group: int) -> dict[str, Case]:
    """Every layout that is read, by a short name. `group` must divide every layer's inputs."""
    int4 = QuantArgs(4, strategy="group", group_size=group)
    uint4 = QuantArgs(4, symmetric=False, strategy="group", group_size=group)
    int8 = QuantArgs(8, strategy="channel")
    half = {"scale_dtype": "float16"}
    gptq = QuantArgs(4, strategy="group", group_size=group, **half)  # type: ignore[arg-type]
    return {
        "w4a16": Case("pack-quantized", int4),
        "w4a16-asym": Case("pack-quantized", uint4),
        "w4a16-channel": Case("pack-quantized", QuantArgs(4, strategy="channel")),
        "w4a16-actorder": Case("pack-quantized", int4, shuffled=True),
        "w8a16": Case("pack-quantized", int8),
        "w8a16-asym": Case("pack-quantized", QuantArgs(8, symmetric=False, strategy="channel")),
        "w8a8": Case("int-quantized", int8),
        "fp8": Case("float-quantized", QuantArgs(8, "float", strategy="channel")),
        "awq": Case("awq", QuantArgs(4, symmetric=False, strategy="group", group_size=group, **half)),  # type: ignore[arg-type]
        "gptq": Case("gptq", gptq),
        "gptq-desc": Case("gptq", gptq, shuffled=True),
        "gptq-8": Case("gptq", QuantArgs(8, strategy="channel", **half)),  # type: ignore[arg-type]
    }  # fmt: skip


def quantized_weight(weight: np.ndarray, case: Case) -> QuantizedWeight:
    """`weight` [out, in] rounded to nearest; with shuffled groups as GPTQ's activation order leaves them."""
    if not case.shuffled:
        return round_to_nearest(weight, case.args)
    columns = weight.shape[1]
    order = np.random.default_rng(columns).permutation(columns)  # the same for q, k and v
    g_idx = np.empty(columns, np.int32)
    g_idx[order] = np.arange(columns) // (case.args.group_size or columns)
    scale, zero_point = choose_scales(weight[:, order], case.args)
    codes = quantize(weight, scale, zero_point, case.args, g_idx)
    return QuantizedWeight(codes, scale, zero_point, case.args, g_idx)


def write_quantized(folder: Path, out: Path, case: Case) -> dict[str, np.ndarray]:
    """Write a quantised copy of `folder`; returns its tensors with the weights that codes stand for."""
    weights = load_weights(folder)
    layers = {
        name.removesuffix(".weight"): quantized_weight(weight, case)
        for name, weight in weights.items()
        if name.endswith("_proj.weight")
    }
    rest = {name: w for name, w in weights.items() if name.removesuffix(".weight") not in layers}
    save_quantized(folder, out, layers, rest, case.fmt)
    return rest | {f"{name}.weight": layer.dequantize() for name, layer in layers.items()}


def twin(folder: Path, weights: dict[str, np.ndarray]) -> Any:
    """The float32 model of the folder's configuration with these weights."""
    from mini_vllm.models.llama import LlamaForCausalLM

    return LlamaForCausalLM(load_config(folder), weights)
