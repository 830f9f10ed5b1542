"""Lab 04-01: the reference solution."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Ints = NDArray[np.integer[Any]]


class State(NamedTuple):
    """What a row knows of the keys that it has seen."""

    m: Floats
    l: Floats  # noqa: E741, its name in the papers and in vLLM
    acc: Floats


class Memory(Protocol):
    """One request's part of the paged cache."""

    block_size: int

    def entries(self, numbers: Ints) -> Ints: ...

    def key(self, blocks: Ints, slots: Ints) -> Floats: ...

    def value(self, blocks: Ints, slots: Ints) -> Floats: ...


def predictions() -> dict[str, list[float]]:
    return {
        "l after each tile": [0, 4 / 3, 5 / 3],
        "rows of K, entries": [203, 13],
        "bytes of K and V, of scores": [16_384_000, 512_000],
        "longest context": [14_528],
    }


def empty(rows: tuple[int, ...], head_size: int) -> State:
    return State(np.full(rows, -np.inf), np.zeros(rows), np.zeros((*rows, head_size)))


def update(state: State, scores: Floats, value: Floats) -> State:
    m = np.maximum(state.m, scores.max(axis=-1))
    # -inf - -inf is NaN. A row that has seen nothing has nothing to rescale, so any number will do.
    base = np.where(np.isneginf(m), 0.0, m)
    rescale = np.exp(state.m - base)
    weights = np.exp(scores - base[..., None])
    total = state.l * rescale + weights.sum(axis=-1)
    acc = state.acc * rescale[..., None] + weights @ value
    return State(m, total, acc)


def finish(state: State) -> Floats:
    total = state.l[..., None]
    out: Floats = np.divide(state.acc, total, out=np.zeros_like(state.acc), where=total > 0)
    return out


def decode(query: Floats, memory: Memory, seq_len: int, scale: float, tile: int) -> Floats:
    num_heads, head_size = query.shape
    state = None
    for first in range(0, seq_len, tile):
        position = np.arange(first, min(first + tile, seq_len))
        blocks = memory.entries(position // memory.block_size)
        slots = position % memory.block_size
        key = memory.key(blocks, slots)
        value = memory.value(blocks, slots)
        num_kv_heads = key.shape[1]
        # [num_heads, D] -> [num_kv_heads, group, D]: a key is read once for its group.
        grouped = query.reshape(num_kv_heads, -1, head_size)
        if state is None:
            state = empty(grouped.shape[:2], head_size)
        scores = grouped @ key.transpose(1, 2, 0) * scale
        state = update(state, scores, value.swapaxes(0, 1))
    assert state is not None
    return finish(state).reshape(num_heads, head_size)


def bytes_read(
    seq_len: int, block_size: int, num_kv_heads: int, head_size: int, element_size: int
) -> tuple[int, int]:
    kv = 2 * seq_len * num_kv_heads * head_size * element_size
    return kv, 4 * -(-seq_len // block_size)


def numbers_held(seq_len: int, rows: int, head_size: int, tile: int) -> tuple[int, int]:
    whole = rows * (seq_len + head_size)
    return whole, rows * (tile + 2 + head_size)
