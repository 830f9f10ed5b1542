"""Given: random layers, experts that count who is read, and the same layer in float64."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ANSWERS = Path(__file__).resolve().parent / "answers.json"


class Experts:
    """The weights of a layer's experts, `[experts, rows, columns]`; counts how often each is read.

    `weights[e]` gives the matrix of expert e, and `weights[[0, 2]]` a copy of several.
    """

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        self.shape = values.shape
        self.dtype = values.dtype
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> np.ndarray:
        self.reads.update(np.ravel(np.arange(len(self))[index]).tolist())
        return self._values[index]


def draw(
    tokens: int, experts: int, top_k: int, hidden: int, inter: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x `[tokens, hidden]`, w13 `[experts, 2 * inter, hidden]`, w2 `[experts, hidden, inter]` and the
    router's logits `[tokens, experts]`, all float32 and the same for the same `seed`."""
    rng = np.random.RandomState(seed)
    sizes = [
        (tokens, hidden), (experts, 2 * inter, hidden), (experts, hidden, inter), (tokens, experts),
    ]  # fmt: skip
    x, w13, w2, logits = (rng.standard_normal(size).astype(np.float32) for size in sizes)
    return x, w13 / np.float32(hidden**0.5), w2 / np.float32(inter**0.5), logits


def softmax(logits: np.ndarray) -> np.ndarray:
    """float64."""
    odds = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(odds / odds.sum(-1, keepdims=True))


def exact(
    x: np.ndarray, w13: np.ndarray, w2: np.ndarray, weights: np.ndarray, ids: np.ndarray
) -> np.ndarray:
    """The layer in float64, all experts on all tokens."""
    gate_up = np.einsum("th,eih->tei", x.astype(np.float64), w13)
    gate, up = np.split(gate_up, 2, axis=-1)
    of_all = np.einsum("tei,ehi->teh", gate / (1 + np.exp(-gate)) * up, w2)
    chosen = np.take_along_axis(of_all, ids[:, :, None].astype(np.int64), 1)
    return np.asarray((weights[:, :, None] * chosen).sum(1))


def by_expert(weights: np.ndarray, ids: np.ndarray) -> list[dict[int, float]]:
    """Each row's weights by expert, whatever their order."""
    pairs = zip(np.asarray(ids).tolist(), np.asarray(weights, np.float64).tolist(), strict=True)
    return [dict(zip(*row, strict=True)) for row in pairs]


def answers() -> dict[str, Any]:
    """What vLLM said, by in_vllm.py."""
    found: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return found
