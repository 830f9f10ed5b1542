"""What the tests and the script of lab 06-05 share: real layers, the slow form, and a judge of results."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import mini_vllm
from mini_vllm.compress.calibrate import LayerInput, calibrate
from mini_vllm.compress.evaluate import CALIBRATION, load_documents
from mini_vllm.model_loader import load_model, load_weights

TINY = mini_vllm.__path__[0] + "/checkpoints/tiny-llama"
Array = np.ndarray


@cache
def _inputs(documents: int) -> dict[str, LayerInput]:
    model = load_model(TINY)
    return calibrate(model, load_documents(CALIBRATION, TINY, documents))


@cache
def _weights() -> dict[str, Array]:
    return load_weights(TINY)


def real_layer(name: str, documents: int = 12) -> tuple[Array, Array]:
    """A linear layer of the shipped model, `[out, in]`, and inputs of it, `[n, in]`, both float64.

    Args:
        name: such as `1.self_attn.k_proj`.
    """
    full = f"model.layers.{name}"
    rows = _inputs(documents)[full].rows
    return _weights()[f"{full}.weight"].astype(np.float64), rows.astype(np.float64)


def made_up(seed: int, rows: int, columns: int, tokens: int = 0) -> tuple[Array, Array]:
    """A weight, and a Hessian of inputs that go together in part."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(tokens or 4 * columns, columns))
    x = x @ (np.eye(columns) + rng.normal(size=(columns, columns)) / np.sqrt(columns))
    return rng.normal(size=(rows, columns)), 2 / len(x) * (x.T @ x)


def with_damp(h: Array, damp: float) -> Array:
    return h + damp * np.diag(h).mean() * np.eye(len(h))


def step_of(columns: Array) -> Array:
    return np.abs(columns).max(axis=1, keepdims=True) / 7.5


def nearest(weight: Array, group_size: int) -> Array:
    """What round-to-nearest makes of a weight, `[out, in]`, as numbers."""
    parts = []
    for first in range(0, weight.shape[1], group_size):
        group = weight[:, first : first + group_size]
        parts.append(np.clip(np.rint(group / step_of(group)), -8, 7) * step_of(group))
    return np.hstack(parts)


def slow(weight: Array, h: Array, group_size: int) -> tuple[Array, Array]:
    """Codes and scales of GPTQ as one would write it first: an inverse for each column."""
    rest = weight.copy()
    codes, scales = np.empty(rest.shape), []
    for j in range(len(h)):
        if j % group_size == 0:
            scales.append(step_of(rest[:, j : j + group_size]))
        step = scales[-1][:, 0]
        codes[:, j] = np.clip(np.rint(rest[:, j] / step), -8, 7)
        inverse = np.linalg.inv(h[j:, j:])
        rest[:, j:] -= np.outer((rest[:, j] - codes[:, j] * step) / inverse[0, 0], inverse[0])
    return codes, np.hstack(scales)


def close(got: Any, want: Any, tolerance: float = 1e-9) -> bool:
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return False
    return bool(np.allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max()))


def looks_like(got: Array, candidates: dict[str, Array]) -> str:
    """The name of the candidate that a result equals, as a sentence; "" for none."""
    for name, other in candidates.items():
        if close(got, other):
            return f" It is {name}."
    return ""
