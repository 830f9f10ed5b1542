"""Given: random choices of experts, weights that count who is read, and lists taken apart again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np


class Experts:
    """The weights of a layer's experts, `[experts, outputs, inputs]`; `weights[e]` is counted as a read."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        self.shape = values.shape
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> np.ndarray:
        self.reads.update(np.ravel(np.arange(len(self))[index]).tolist())
        return self._values[index]


def choose(tokens: int, top_k: int, experts: int, rng: Any) -> np.ndarray:
    """The experts of each token, int32 `[tokens, top_k]`, no expert twice for one token."""
    return np.array([rng.permutation(experts)[:top_k] for _ in range(tokens)], np.int32)


def cases(number: int, seed: int) -> list[tuple[np.ndarray, int, int]]:
    """Random choices, each with a block size and the number of experts; some experts get no tokens."""
    rng = np.random.RandomState(seed)
    drawn = []
    for _ in range(number):
        experts = int(rng.choice([2, 4, 8, 16, 64]))
        top_k = int(rng.randint(1, min(experts, 8) + 1))
        few = int(rng.randint(top_k, experts + 1))  # only these are ever chosen
        ids = choose(int(rng.randint(1, 40)), top_k, few, rng)
        names = rng.permutation(experts).astype(np.int32)
        drawn.append((names[ids], int(rng.choice([1, 4, 16, 32])), experts))
    return drawn


def want_list(ids: np.ndarray, block: int, experts: int) -> tuple[list[int], list[int]]:
    """Pairs and padding up to the last block that holds a pair, and the expert of each block."""
    pairs: list[int] = []
    of_blocks: list[int] = []
    flat = ids.ravel().tolist()
    for expert in range(experts):
        mine = [pair for pair, chosen in enumerate(flat) if chosen == expert]
        mine += [len(flat)] * (-len(mine) % block)
        pairs += mine
        of_blocks += [expert] * (len(mine) // block)
    return pairs, of_blocks
