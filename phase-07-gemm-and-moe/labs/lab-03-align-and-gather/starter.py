"""Lab 07-03: the list by which a grouped product finds its rows. Your work: every NotImplementedError.

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
    raise NotImplementedError


def longest_list(num_pairs: int, num_experts: int, block_size: int) -> int:
    """Room for the list before anybody has counted: a bound, not the longest list there can be.

    The pairs, and block_size - 1 rows of padding for each expert that may have one. With fewer pairs than
    experts, not every expert has one. There may be no batch that fills it, and it need not be whole blocks.
    """
    raise NotImplementedError


def align(topk_ids: Ints, block_size: int, num_experts: int) -> tuple[Ints, Ints, int]:
    """The pairs sorted by expert, each expert padded to whole blocks.

    Args:
        topk_ids: int32 `[tokens, top_k]`, the experts of each token.
        block_size: rows of a block.
        num_experts: of the layer; some may have no tokens.

    Returns:
        sorted_pairs: int32 `[longest_list(...)]`. The pairs of expert 0, ascending, padded to a multiple of
            block_size; then those of expert 1; and so on. An expert without pairs takes no room. Padding, and
            whatever lies behind the last block, is the number of pairs: a pair that does not exist.
        block_experts: int32, one for each block that fits into the room, the last one perhaps in part: the
            expert of the block, -1 behind the last block that is used.
        num_padded: rows of the blocks that are used.
    """
    raise NotImplementedError


def assign(topk_ids: Ints, block_size: int, num_experts: int) -> tuple[Ints | None, Ints, int]:
    """As `align`, or without a list where a small batch leaves most experts unused.

    Where four times the pairs are no more than the experts, hardly two tokens meet in an expert. Then each
    pair gets a block of its own, sorted_pairs is None, and block b is pair b.
    """
    raise NotImplementedError


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
    """Each pair's row of x times its expert's weights: float32 `[num_pairs, N]`, row p for pair p.

    Block by block: look up the block's pairs, gather their rows, multiply them by the one expert, and store
    each product at its pair. Blocks from num_padded on are not touched.

    Args:
        x: `[rows, K]`. Pair p reads row p // top_k. A layer's first product gets a row for each token. Its
            second has a row for each pair already, and is called with a top_k of 1.
        w: `[experts, N, K]`; `w[e]` reads expert e from memory, once for each of its blocks. `w.shape` reads
            nothing.
        sorted_pairs, block_experts, num_padded: from `assign`.
    """
    raise NotImplementedError
