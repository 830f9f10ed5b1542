"""Lab 07-03: the list by which a grouped product finds its rows. A solution.

A pair is one token with one of its experts; of `[tokens, top_k]` numbered row by row, pair p belongs to token
p // top_k. A block is the rows of the product that one program computes, all with the weights of one expert.
Lists are int32, as a kernel takes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Ints = NDArray[np.int32]


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    return {
        "list": [1, 2, 5, 6, 0, 4, 3, 6],
        "fewest and most rows": [128, 240],
        "padding, in per cent": [75, 0, 93.75, 75],
        "largest batch without a list": [1, 4, 8],
        "rows for one token": 32,
    }


def longest_list(num_pairs: int, num_experts: int, block_size: int) -> int:
    """Room for the list before anybody has counted: a bound, as vLLM's."""
    return num_pairs + min(num_pairs, num_experts) * (block_size - 1)


def align(topk_ids: Ints, block_size: int, num_experts: int) -> tuple[Ints, Ints, int]:
    """The pairs sorted by expert, each expert padded to whole blocks."""
    flat = topk_ids.ravel()
    room = longest_list(flat.size, num_experts, block_size)
    sorted_pairs = np.full(room, flat.size, np.int32)
    block_experts = np.full(-(-room // block_size), -1, np.int32)
    used = 0
    for expert in range(num_experts):
        mine = np.flatnonzero(flat == expert)
        blocks = -(-len(mine) // block_size)
        sorted_pairs[used : used + len(mine)] = mine
        block_experts[used // block_size : used // block_size + blocks] = expert
        used += blocks * block_size
    return sorted_pairs, block_experts, used


def assign(topk_ids: Ints, block_size: int, num_experts: int) -> tuple[Ints | None, Ints, int]:
    """As `align`, or without a list where a small batch leaves most experts unused."""
    num_pairs = topk_ids.size
    if num_pairs * 4 <= num_experts:
        return None, topk_ids.ravel(), num_pairs * block_size
    return align(topk_ids, block_size, num_experts)


def gather_gemm(
    x: Array,
    w: Any,
    sorted_pairs: Ints | None,
    block_experts: Ints,
    num_padded: int,
    block_size: int,
    num_pairs: int,
    top_k: int,
) -> Array:
    """Each pair's row of x times its expert's weights: float32 `[num_pairs, N]`, row p for pair p."""
    out = np.empty((num_pairs, w.shape[1]), np.float32)
    for block in range(num_padded // block_size):
        if sorted_pairs is None:
            pairs = np.array([block])
        else:
            pairs = sorted_pairs[block * block_size : (block + 1) * block_size]
        pairs = pairs[pairs < num_pairs]
        out[pairs] = x[pairs // top_k] @ w[block_experts[block]].T
    return out
