"""What the tests of the quantisation methods share: the shipped model, its inputs, and rounding in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.compress.calibrate import FUSED, LayerInput, calibrate
from mini_vllm.compress.evaluate import CALIBRATION, HELD_OUT, load_documents
from mini_vllm.layers.quantization.grid import QuantArgs, round_to_nearest
from mini_vllm.model_loader import load_config, load_weights
from mini_vllm.models.llama import LlamaForCausalLM
from tests.engine.helpers.thorough import either

TINY = Path(__file__).parents[4] / "mini_vllm" / "checkpoints" / "tiny-llama"
CONFIG = load_config(TINY)
INT8 = QuantArgs(8, strategy="channel")


@cache
def weights() -> dict[str, np.ndarray]:
    return load_weights(TINY)


@cache
def model() -> LlamaForCausalLM:
    return LlamaForCausalLM(CONFIG, weights())


@cache
def held_out() -> list[list[int]]:
    """All held-out documents for CI, the first ones on a laptop."""
    return load_documents(HELD_OUT, TINY, either(6, 96))


@cache
def inputs() -> dict[str, LayerInput]:
    """What the linear layers of the shipped model see of the calibration texts."""
    return calibrate(model(), load_documents(CALIBRATION, TINY, either(8, 128)))


def linears(layers: Iterable[int] = range(CONFIG.num_hidden_layers)) -> list[str]:
    """Names of the linear layers of these decoder layers."""
    return [
        f"model.layers.{i}.{block}.{name}"
        for i in layers
        for (block, _), names in FUSED.items()
        for name in names
    ]


def with_weights(changed: Mapping[str, np.ndarray]) -> LlamaForCausalLM:
    return LlamaForCausalLM(CONFIG, changed)


def rounded(
    tensors: Mapping[str, np.ndarray], args: QuantArgs, names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """The tensors with the weights of these linear layers, or of all, rounded to the nearest code."""
    return {**tensors} | {
        f"{name}.weight": round_to_nearest(tensors[f"{name}.weight"], args).dequantize()
        for name in (linears() if names is None else names)
    }


class RoundedInput:
    """A linear layer whose input is rounded to int8, each token with a scale of its own, as W8A8 does it."""

    def __init__(self, linear: Any) -> None:
        self.linear = linear

    def __call__(self, x: np.ndarray) -> np.ndarray:
        scale = np.maximum(np.abs(x).max(axis=-1, keepdims=True) / np.float32(127), 1e-10)
        y: np.ndarray = self.linear(np.rint(x / scale) * scale)
        return y


def w8a8(tensors: Mapping[str, np.ndarray]) -> LlamaForCausalLM:
    """A model of these tensors, weights and activations of its linear layers rounded to int8."""
    made = with_weights(rounded(tensors, INT8))
    for layer in made.layers:
        for block, linear in FUSED:
            part = getattr(layer, block)
            setattr(part, linear, RoundedInput(getattr(part, linear)))
    return made
