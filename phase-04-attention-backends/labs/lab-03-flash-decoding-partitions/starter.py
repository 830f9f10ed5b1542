"""Lab 04-03: attention in parts that may be put together in any way. Your work: every NotImplementedError.

Everything is float64. The state is that of lab 04-01 with powers of two, as kernels have it: a weight is 2 to
the score, because the scores were multiplied by log2(e) before. `rows` are query heads that share K and V.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]


class State(NamedTuple):
    """What rows know of some keys.

    Attributes:
        m: `[rows]`, the largest score; -inf where there is no key.
        l: `[rows]`, the sum of `2 ** (score - m)`.
        acc: `[rows, D]`, the sum of `2 ** (score - m) * value`.
    """

    m: Floats
    l: Floats  # noqa: E741, its name in the papers and in vLLM
    acc: Floats


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, list[float]]:
    """Your answers to the four questions of the README, under the names given there."""
    raise NotImplementedError


# ---- parts ---------------------------------------------------------------------------------------


def _finite(m: Floats) -> Floats:
    """What to take off the scores: the maximum, or 0 where there is no key (given)."""
    return np.where(np.isneginf(m), 0.0, m)


def attend_partial(query: Floats, key: Floats, value: Floats, scale: float) -> State:
    """The state of these keys, and of no others.

    Args:
        query: `[rows, D]`.
        key, value: `[n, D]`; n may be 0.
        scale: what a score is multiplied by before its weight is `exp(score)`. With powers of two, by how
            much more?
    """
    raise NotImplementedError


def merge(a: State, b: State) -> State:
    """The state of the keys of both. In either a row may have no key. Neither state is changed."""
    raise NotImplementedError


def finish(state: State) -> Floats:
    """The mean of the values under softmax, `[rows, D]`; 0 for a row without a key (given)."""
    weights = state.l[:, None]
    out: Floats = np.divide(state.acc, weights, out=np.zeros_like(state.acc), where=weights > 0)
    return out


def total(state: State, row: int) -> tuple[Fraction, list[Fraction]]:
    """The two quantities of the README's proof, the one of the weights first, as exact fractions.

    A float is a fraction, `Fraction(0.75)` for instance, and `Fraction(2) ** -3` is one eighth.

    Args:
        state: with whole numbers, or -inf, for m.
    """
    raise NotImplementedError


# ---- all of them ---------------------------------------------------------------------------------


def merge_tree(states: Sequence[State]) -> tuple[State, int]:
    """All states in one, and in how many rounds (given).

    In a round neighbours are merged, first with second, third with fourth, all at the same time; a state
    without a neighbour waits. The list, at least one state long, is left as it is.
    """
    level, rounds = list(states), 0
    while len(level) > 1:
        pairs = [merge(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
        rounds += 1
    return level[0], rounds


def partitioned_attention(
    query: Floats, key: Floats, value: Floats, scale: float, num_splits: int
) -> Floats:
    """Attention with the keys in `num_splits` parts, merged by `merge_tree`: `[rows, D]` (given).

    Part i has the keys from `i * size` on, and `size` is the least with which that many parts hold all keys.
    The last parts may be short, or empty.
    """
    size = -(-len(key) // num_splits)
    parts = [slice(i * size, (i + 1) * size) for i in range(num_splits)]
    state, _ = merge_tree([attend_partial(query, key[part], value[part], scale) for part in parts])
    return finish(state)


# ---- the other form ------------------------------------------------------------------------------


def to_lse(state: State) -> tuple[Floats, Floats]:
    """A state in the form that other kernels return: the finished output, and its log-sum-exp.

    Returns:
        out `[rows, D]` and lse `[rows]`: the *natural* logarithm of the sum of all weights, which is -inf
        where there is no key.
    """
    raise NotImplementedError


def from_lse(out: Floats, lse: Floats) -> State:
    """A state from those two. A row without a key has lse -inf, or +inf, and anything as its output."""
    raise NotImplementedError


# ---- when it pays --------------------------------------------------------------------------------


def segments(seq_len: int, tile: int, num_segments: int = 16) -> tuple[int, int]:
    """How vLLM's Triton kernel cuts a sequence: the keys a segment has room for, and the segments with any.

    All segments are given the same whole number of tiles, the least that is enough.
    """
    raise NotImplementedError


def busiest(num_seqs: int, num_kv_heads: int, seq_len: int, num_splits: int, num_sms: int) -> int:
    """How many keys the busiest multiprocessor goes over, if it works on one program at a time.

    There is a program for each sequence, KV head and part. All parts are as long as the longest, and programs
    are dealt out to the multiprocessors in turn.
    """
    raise NotImplementedError
