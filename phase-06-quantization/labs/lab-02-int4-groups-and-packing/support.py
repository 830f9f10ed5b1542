"""What lab 06-02 shares: Noor's model, the shipped one, and layers written by `mini-vllm`'s own writers."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from mini_vllm.compress.save import save_quantized
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.quantization.grid import QuantArgs, QuantizedWeight, round_to_nearest
from mini_vllm.model_loader import load_weights

Array = NDArray[Any]

LLAMA_8B_LAYER = [
    (4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096),  # q, k, v, o
    (14336, 4096), (14336, 4096), (4096, 14336),  # gate, up, down
]  # fmt: skip
"""(out, in) of the linear layers of one of Llama-3.1-8B's 32 decoder layers."""
LLAMA_8B_LINEARS = LLAMA_8B_LAYER * 32
LLAMA_8B_OTHERS = 8_030_261_248 - sum(out * inp for out, inp in LLAMA_8B_LINEARS)

GRIDS = {"pack-quantized": True, "pack-quantized, asymmetric": False, "gptq": True, "awq": False}
"""Layouts, and whether the grid is symmetric."""
_NUMPY = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}


@functools.cache
def linear_weights() -> dict[str, Array]:
    """The shipped model's linear layers by name, without `.weight`; float32 [out, in]."""
    weights = load_weights(DEFAULT_MODEL)
    ending = "_proj.weight"
    return {n.removesuffix(".weight"): w for n, w in weights.items() if n.endswith(ending)}


def as_run() -> dict[str, tuple[int, int]]:
    """(out, in) of the shipped model's layers as an engine multiplies them, some of them at once."""
    return {"qkv": (256, 128), "o": (128, 128), "gate_up": (768, 128), "down": (128, 384)}


def reference(weight: Array, group_size: int, symmetric: bool) -> QuantizedWeight:
    """The same layer by `mini_vllm`."""
    strategy: Any = "channel" if group_size == -1 else "group"
    size = None if group_size == -1 else group_size
    args = QuantArgs(4, "int", symmetric, strategy, size, scale_dtype="float16")
    return round_to_nearest(weight, args)


def unsigned(weight: QuantizedWeight) -> tuple[Array, Array, Array]:
    """Codes, scale and zero point in this lab's convention."""
    if weight.zero_point is not None:
        return weight.codes, weight.scale, weight.zero_point
    return weight.codes + 8, weight.scale, np.full(weight.scale.shape, 8, np.int32)


@functools.cache
def written(grid: str, group_size: int) -> dict[str, dict[str, Array]]:
    """A whole checkpoint by `mini_vllm`'s writer, as vLLM reads it: its layers' tensors by name."""
    symmetric = GRIDS[grid]
    linears = linear_weights()
    layers = {name: reference(w, group_size, symmetric) for name, w in linears.items()}
    rest = {n: w for n, w in load_weights(DEFAULT_MODEL).items() if "_proj." not in n}
    layout: Any = grid.split(",")[0]
    with tempfile.TemporaryDirectory() as place:
        save_quantized(DEFAULT_MODEL, Path(place) / "out", layers, rest, layout)
        data = (Path(place) / "out" / "model.safetensors").read_bytes()
    found: dict[str, dict[str, Array]] = {name: {} for name in layers}
    for name, entry in sorted(safetensors.deserialize(data), key=lambda pair: pair[0]):
        layer, _, part = name.rpartition(".")
        if layer in found:
            array = np.frombuffer(entry["data"], _NUMPY[entry["dtype"]])
            found[layer][part] = array.reshape(entry["shape"])
    return found
