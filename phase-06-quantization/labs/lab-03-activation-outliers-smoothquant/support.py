"""What the tests and the script of lab 06-03 share: real layers of the shipped model, errors of outputs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import mini_vllm
from mini_vllm.compress.calibrate import LayerInput, calibrate
from mini_vllm.compress.evaluate import CALIBRATION, load_documents
from mini_vllm.model_loader import load_model, load_weights
from mini_vllm.models.llama import LlamaForCausalLM

TINY = Path(mini_vllm.__file__).parent / "checkpoints" / "tiny-llama"
Array = np.ndarray


class Block(NamedTuple):
    """A norm and the layers that get its output.

    Attributes:
        norm: `[in]`.
        weights: q, k, v, or gate, up: each `[out, in]`.
        normed: `[n, in]`, inputs before the norm's weight comes in.
        absmax: `[in]`, of the inputs, over other texts.
    """

    norm: Array
    weights: list[Array]
    normed: Array
    absmax: Array

    @property
    def x(self) -> Array:
        return self.normed * self.norm


@cache
def model() -> LlamaForCausalLM:
    return load_model(TINY)


@cache
def weights() -> dict[str, Array]:
    return load_weights(TINY)


@cache
def _inputs() -> tuple[dict[str, LayerInput], dict[str, LayerInput]]:
    documents = load_documents(CALIBRATION, TINY, 12)
    return calibrate(model(), documents[:8]), calibrate(model(), documents[8:])


def block(layer: int, which: str) -> Block:
    """`attn` or `mlp` of a layer of the shipped model, in float64."""
    prefix = f"model.layers.{layer}."
    norm, names = {
        "attn": ("input_layernorm", [f"self_attn.{p}_proj" for p in "qkv"]),
        "mlp": ("post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"]),
    }[which]
    gain = weights()[f"{prefix}{norm}.weight"].astype(np.float64)
    seen, new = (inputs[prefix + names[0]] for inputs in _inputs())
    return Block(
        gain,
        [weights()[f"{prefix}{name}.weight"].astype(np.float64) for name in names],
        new.rows / gain,
        seen.absmax.astype(np.float64),
    )


def error(lab: Any, norm: Array, weights_: list[Array], normed: Array, true: list[Array]) -> float:
    """How far the W8A8 outputs are off, of the outputs' own size."""
    off = [lab.w8a8(normed * norm, w) - y for w, y in zip(weights_, true, strict=True)]
    size = sum(float((y**2).sum()) for y in true)
    return float(np.sqrt(sum(float((o**2).sum()) for o in off) / size))


def reference_scale(x: Array) -> Array:
    """`[n, 1]`, a scale for each row."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    return np.where(largest == 0, 1.0, largest / 127)


def close(got: Any, want: Any, tolerance: float = 1e-9) -> bool:
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and bool(
        np.allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max())
    )
