"""What breaks without a step on the way from the file to the product: set-up for the deep dive.

Each function leaves one step out, on the shipped model. The page imports this module by its name: start
Python in this folder.

    python phase-06-quantization/broken_quantization.py       all of them
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from noor import Array, error, matrix, seen

from mini_vllm import LLM, SamplingParams
from mini_vllm.compress.quantize import quantize_checkpoint
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.quantization import get_quantization_config, linear
from mini_vllm.layers.quantization.float_formats import E4M3
from mini_vllm.layers.quantization.grid import QuantArgs, round_to_nearest
from mini_vllm.layers.quantization.linear import LinearMethod
from mini_vllm.layers.quantization.pack import unpack_int32

PROMPT = "The KV cache"


def says(model: Path = DEFAULT_MODEL, **settings: Any) -> str:
    """What a checkpoint answers to PROMPT, greedily."""
    [output] = LLM(str(model), **settings).generate(
        [PROMPT], SamplingParams(temperature=0, max_tokens=30), use_tqdm=False
    )
    return output.outputs[0].text


@cache
def _workshop() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="quantised-")


@cache
def made(method: str) -> Path:
    """The shipped checkpoint, quantised."""
    folder = Path(_workshop().name) / method
    quantize_checkpoint(DEFAULT_MODEL, folder, method)
    return folder


def asked(method: str) -> dict[str, Any]:
    """The `quantization_config` of such a checkpoint."""
    raw = json.loads((made(method) / "config.json").read_text("utf-8"))
    found: dict[str, Any] = raw["quantization_config"]
    return found


def in_plain_order() -> str:
    """An AWQ file, its codes taken out of their words from the lowest bits up, as in any other format."""

    def plain(words: Array) -> Array:
        return unpack_int32(words, 4, 1, 8 * words.shape[1])

    with patch.object(linear, "unpack_awq", plain):
        return says(made("awq"))


def methods(ignore: list[str]) -> list[LinearMethod]:
    """The methods of the first layer's q, k and v, in a W4A16 checkpoint with some projections left alone."""
    config = get_quantization_config(asked("int4-g128") | {"ignore": ["lm_head", *ignore]})
    return [config.get_quant_method(f"model.layers.0.self_attn.{one}_proj") for one in "qkv"]


def one_scale_for_three() -> tuple[float, float]:
    """q, k and v in FP8 with a scale each, which become one product with one scale, the largest.

    Returns:
        per cent by which the three are off if their codes are rounded anew for it, and if they are left.
    """
    whole = np.concatenate([matrix(0, name) for name in "qkv"])
    parts = [round_to_nearest(matrix(0, name), QuantArgs(8, "float")) for name in "qkv"]
    largest = max(float(part.scale[0, 0]) for part in parts)
    numbers = np.concatenate([part.dequantize() for part in parts])
    anew = E4M3.decode(E4M3.encode(numbers / np.float32(largest))) * np.float32(largest)
    left = np.concatenate([E4M3.decode(part.codes.astype(np.uint8)) for part in parts])
    return error(whole, anew), error(whole, left * np.float32(largest))


@cache
def keys() -> Array:
    """Keys of layer 1 over the calibration text, before they are turned by their position."""
    rows: Array = seen()["model.layers.1.self_attn.k_proj"].rows @ matrix(1, "k").T
    return rows


def keys_kept(kind: str, scale: float = 1.0) -> float:
    """Per cent by which these keys are off, kept as `kind`: "fp8" or "int8", of the key over `scale`."""
    scaled = keys() / np.float32(scale)
    kept = E4M3.decode(E4M3.encode(scaled)) if kind == "fp8" else np.rint(scaled).clip(-128, 127)
    return error(keys(), kept * np.float32(scale))


if __name__ == "__main__":
    print("AWQ as it is, and in plain order:", repr(says(made("awq"))), repr(in_plain_order()))
    print("q, k, v with one scale, rounded anew and not:", one_scale_for_three())
    print("keys in fp8 and int8 with scale 1:", keys_kept("fp8"), keys_kept("int8"))
