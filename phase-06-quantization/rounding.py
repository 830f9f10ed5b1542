"""How codes are chosen, in numbers small enough to check by hand: set-up for the second half of the guide.

The page imports this module by its name: start Python in this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from noor import Array, down_inputs, error, matrix, seen, weights
from numpy.typing import NDArray

from mini_vllm.compress.fold import norm_folds
from mini_vllm.compress.gptq import gptq, inverse_rows
from mini_vllm.compress.smoothquant import smoothing_scales
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.layers.quantization.grid import QuantArgs, choose_scales, quantize, round_to_nearest
from mini_vllm.layers.quantization.scaled import quantize_per_token_int8
from mini_vllm.model_loader import load_config

Floats = NDArray[np.float64]

# --- GPTQ ---

INPUTS: Floats = np.array([[2.0, 2, 0], [1, 0, 1], [0, 1, 0]])
"""Three tokens of calibration, three inputs each."""
WEIGHTS: Floats = np.array([1.4, 1.4, 0.3])
"""A row of weights, for a grid of whole numbers."""


def gptq_steps(row: Floats, hessian: Floats) -> list[Floats]:
    """A row of weights on a grid of whole numbers after each of GPTQ's steps, without damping."""
    row, steps = row.copy(), []
    for j in range(len(row)):
        change = np.rint(row[j]) - row[j]
        row[j] += change
        rest = slice(j + 1, None)
        row[rest] -= change * np.linalg.solve(hessian[rest, rest], hessian[rest, j])
        steps.append(row.copy())
    return steps


def squared_error(codes: Sequence[float], row: Floats, hessian: Floats) -> float:
    """By how much the outputs of all tokens are off, squared and added up."""
    change = np.asarray(codes) - row
    return round(float(change @ hessian @ change), 2)


@cache
def moved_by_gptq(layer: int = 0, name: str = "q", row: int = 0) -> Floats:
    """GPTQ at work on one row of a projection with one scale, column by column, as `gptq` does it.

    Returns:
        `[columns, columns]`: after each column, by how many steps of the grid each weight has moved.
    """
    weight = np.array(matrix(layer, name)[row : row + 1], np.float64)
    args = QuantArgs(4, strategy="channel")
    hessian = seen()[f"model.layers.{layer}.self_attn.{name}_proj"].hessian
    factor = inverse_rows(hessian, 0.01)
    scale = choose_scales(weight.astype(np.float32), args)[0]
    work, moved = weight.copy(), []
    for j in range(weight.shape[1]):
        code = quantize(work[:, j : j + 1], scale, None, args)
        work[:, j:] -= (work[:, j : j + 1] - code * scale) * (factor[j, j:] / factor[j, j])
        moved.append((work - weight)[0] / scale[0, 0])
    made = gptq(weight.astype(np.float32), hessian, args)
    assert np.allclose(work, made.dequantize(), atol=1e-5)
    return np.array(moved)


# --- SmoothQuant ---

PLANTED, FACTOR = 5, 64
"""The channel that is made large, and by how much: the shipped model has no large one behind its norms."""


@dataclass(frozen=True)
class Channels:
    """The largest magnitude of each channel: of the inputs, and of the weights that they meet."""

    inputs: Floats
    columns: Floats


@cache
def smoothed(alpha: float = 0.5) -> tuple[Channels, Channels]:
    """Layer 0's query, key and value with one input channel planted large, before and after smoothing.

    The planted channel's inputs are FACTOR times as large; its column of weights stays as it is.
    """
    fold = norm_folds(load_config(DEFAULT_MODEL))[0]
    inputs = np.array(seen()[fold.linears[0]].absmax, np.float64)
    inputs[PLANTED] *= FACTOR
    found = [np.abs(weights()[f"{name}.weight"]).max(axis=0) for name in fold.linears]
    columns = np.max(found, axis=0).astype(np.float64)
    s = smoothing_scales(inputs, columns, alpha)
    return Channels(inputs, columns), Channels(inputs / s, columns * s)


def print_smoothed_errors() -> None:
    """Print what 8 bits on both sides do to this product, before and after smoothing.

    In percent: how far the inputs of the other channels are off, the weights, and the output.
    """
    fold = norm_folds(load_config(DEFAULT_MODEL))[0]
    inputs = seen()[fold.linears[0]].rows.copy()
    inputs[:, PLANTED] *= FACTOR
    weight = np.concatenate([weights()[f"{name}.weight"] for name in fold.linears])
    before, _ = smoothed()
    s = smoothing_scales(before.inputs, before.columns, 0.5).astype(np.float32)
    others = np.arange(len(s)) != PLANTED
    print("percent off   other inputs   weights   output")
    for name, x, w in (("as it is", inputs, weight), ("smoothed", inputs / s, weight * s)):
        codes, scale = quantize_per_token_int8(x)
        stored = round_to_nearest(w, QuantArgs(8, strategy="channel")).dequantize()
        off = error(x[:, others], (codes * scale)[:, others])
        output = error(inputs @ weight.T, (codes * scale) @ stored.T)
        print(f"{name:11}{off:15}{error(w, stored):10}{output:9}")


# --- rotation ---


def hadamard(size: int) -> Array:
    """The orthonormal Hadamard matrix of a power of two: every entry is plus or minus 1 / sqrt(size)."""
    made = np.ones((1, 1), np.float32)
    while len(made) < size:
        made = np.block([[made, made], [made, -made]])
    return made / np.float32(size) ** np.float32(0.5)


def turned(block: int = 128) -> tuple[tuple[float, float], tuple[float, float]]:
    """What the first layer's down_proj gets for `<bos>`, as it is and with its channels turned in blocks.

    Returns:
        (largest magnitude, percent of error in 8 bits with one scale for the token), each way.
    """
    row = down_inputs()[0].reshape(-1, block)
    found = []
    for turn in (np.eye(block, dtype=np.float32), hadamard(block)):
        x = (row @ turn).reshape(1, -1)
        off = error(x, round_to_nearest(x, QuantArgs(8, strategy="channel")).dequantize())
        found.append((round(float(np.abs(x).max()), 1), off))
    return found[0], found[1]
