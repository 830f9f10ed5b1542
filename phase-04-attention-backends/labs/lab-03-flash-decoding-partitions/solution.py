"""Lab 04-03: the reference solution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
LOG2_E = math.log2(math.e)


class State(NamedTuple):
    """What rows know of some keys."""

    m: Floats
    l: Floats  # noqa: E741, its name in the papers and in vLLM
    acc: Floats


def predictions() -> dict[str, list[float]]:
    return {
        "m, l, acc": [3, 2, 8],
        "keys with 1, 16, 17 parts": [4096, 256, 482],
        "segments with keys": [13, 10, 16],
        "bytes of states": [532_480],
    }


def _finite(m: Floats) -> Floats:
    """What to take off the scores: the maximum, or 0 where there is no key (given)."""
    return np.where(np.isneginf(m), 0.0, m)


def attend_partial(query: Floats, key: Floats, value: Floats, scale: float) -> State:
    scores = query @ key.T * (scale * LOG2_E)
    m = scores.max(axis=1, initial=-np.inf)
    weights = np.exp2(scores - _finite(m)[:, None])
    return State(m, weights.sum(axis=1), weights @ value)


def merge(a: State, b: State) -> State:
    m = np.maximum(a.m, b.m)
    of_a = np.exp2(a.m - _finite(m))
    of_b = np.exp2(b.m - _finite(m))
    acc = a.acc * of_a[:, None] + b.acc * of_b[:, None]
    return State(m, a.l * of_a + b.l * of_b, acc)


def finish(state: State) -> Floats:
    weights = state.l[:, None]
    out: Floats = np.divide(state.acc, weights, out=np.zeros_like(state.acc), where=weights > 0)
    return out


def total(state: State, row: int) -> tuple[Fraction, list[Fraction]]:
    if np.isneginf(state.m[row]):
        return Fraction(0), [Fraction(0)] * state.acc.shape[1]
    unit = Fraction(2) ** int(state.m[row])
    return Fraction(state.l[row]) * unit, [Fraction(x) * unit for x in state.acc[row]]


def merge_tree(states: Sequence[State]) -> tuple[State, int]:
    level, rounds = list(states), 0
    while len(level) > 1:
        pairs = [merge(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
        rounds += 1
    return level[0], rounds


def partitioned_attention(
    query: Floats, key: Floats, value: Floats, scale: float, num_splits: int
) -> Floats:
    size = -(-len(key) // num_splits)
    parts = [slice(i * size, (i + 1) * size) for i in range(num_splits)]
    state, _ = merge_tree([attend_partial(query, key[part], value[part], scale) for part in parts])
    return finish(state)


def to_lse(state: State) -> tuple[Floats, Floats]:
    log2_l = np.log2(state.l, out=np.zeros_like(state.l), where=state.l > 0)
    return finish(state), (state.m + log2_l) / LOG2_E


def from_lse(out: Floats, lse: Floats) -> State:
    some = np.isfinite(lse)
    m = np.where(some, lse * LOG2_E, -np.inf)
    return State(m, some.astype(float), np.where(some[:, None], out, 0.0))


def segments(seq_len: int, tile: int, num_segments: int = 16) -> tuple[int, int]:
    keys = -(-seq_len // (num_segments * tile)) * tile
    return keys, -(-seq_len // keys)


def busiest(num_seqs: int, num_kv_heads: int, seq_len: int, num_splits: int, num_sms: int) -> int:
    programs = num_seqs * num_kv_heads * num_splits
    return -(-programs // num_sms) * -(-seq_len // num_splits)
