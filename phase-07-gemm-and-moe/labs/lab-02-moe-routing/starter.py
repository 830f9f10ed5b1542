"""Lab 07-02: which experts a token gets, and what they make of it. Your work: every NotImplementedError.

T tokens, E experts, k of them active; H the hidden size, I that of an expert. A pair is one token with one of
its experts; of `[T, k]` numbered row by row, pair p belongs to token p // k.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.layers.activation import silu_and_mul  # noqa: F401

Array = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names that stand there."""
    raise NotImplementedError


def route(logits: Array, top_k: int, renormalize: bool) -> tuple[Array, Ints]:
    """The experts of each token, and how much each counts.

    A softmax over all experts gives their probabilities. The top_k largest are kept, the largest first, of
    equal ones the lower expert first. With `renormalize` they are divided by their sum.

    Args:
        logits: float32 `[T, E]`, of any size: none may overflow.

    Returns:
        Weights, float32 `[T, k]`, and experts, integers `[T, k]`.
    """
    raise NotImplementedError


def route_in_groups(
    logits: Array, top_k: int, renormalize: bool, num_groups: int, kept_groups: int
) -> tuple[Array, Ints]:
    """As `route`, but a token may only take experts of its `kept_groups` best groups (DeepSeek-V2).

    The experts are split into num_groups groups of neighbours. A group is as good as its most probable
    expert; of equal ones the lower group is better. The probabilities are those of the softmax over all.
    """
    raise NotImplementedError


def expert(x: Array, w13: Array, w2: Array) -> Array:
    """One expert on some rows: `down(silu(gate(x)) * up(x))`.

    Args:
        x: `[n, H]`.
        w13: `[2 * I, H]`, the rows of gate above those of up. `silu_and_mul` takes the two side by side.
        w2: `[H, I]`, down.

    Returns:
        `[n, H]`.
    """
    raise NotImplementedError


def moe_reference(x: Array, w13: Any, w2: Any, weights: Array, ids: Ints) -> Array:
    """The layer, one pair after the other: each token's weighted sum of its experts. `[T, H]`, float32.

    Args:
        x: `[T, H]`.
        w13, w2: `[E, 2 * I, H]` and `[E, H, I]`. `w13[e]` reads expert e from memory; `len` and `shape` read
            nothing.
        weights, ids: `[T, k]` each, as `route` gives them.
    """
    raise NotImplementedError


def index_list(ids: Ints, num_experts: int) -> tuple[Ints, Ints]:
    """All pairs, sorted by expert.

    Returns:
        The pairs' numbers `[T * k]`, those of expert 0 first, within an expert ascending; and how many each
        expert has, `[num_experts]`.
    """
    raise NotImplementedError


def moe_grouped(x: Array, w13: Any, w2: Any, weights: Array, ids: Ints) -> Array:
    """What `moe_reference` returns, with each expert read at most once, and not at all without tokens.

    Walk over the experts. Each takes the rows of its pairs through the index list, and puts what comes out
    into the pairs' places in an array `[T * k, H]`. Then each token adds up its k places, weighted. A batch
    may be empty.
    """
    raise NotImplementedError
