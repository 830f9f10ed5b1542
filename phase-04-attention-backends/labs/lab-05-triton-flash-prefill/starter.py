"""Lab 04-05: causal prefill over a paged cache, in Triton.

One kernel is yours, `prefill_kernel`. Given are the function that starts it and two that it calls: one loads
K and V of a tile, the other takes a tile into the softmax. Lab 02-06's README says what Triton is.

Shapes; every last axis has stride 1, all other strides are arguments, counted in numbers, not bytes:

    query, out               [num_tokens, num_heads, head_size], the chunks one after another
    key_cache, value_cache   [num_blocks, block_size, num_kv_heads, head_size]
    block_table              int32 [num_seqs, width]
    seq_lens                 int32 [num_seqs]: tokens of each sequence, the chunk included
    query_start_loc          int32 [num_seqs + 1]: sequence i has the query rows from entry i to entry i + 1,
                             at least one; they are its last tokens, in order

K and V of the chunk are in the cache already. Token t of a sequence is in block `table[t // block_size]`,
slot `t % block_size`. Slots that no sequence has written may hold anything, even NaN, and so do entries of
the table past a sequence's last block.

head_size and block_size are powers of two. The dtype is float32 or float16; add up in float32.
No torch is imported: a launcher needs nothing of it but the tensors that it is given.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

Tensor = Any
LOG2_E = 1.4426950408889634
"""exp(x) = 2 ** (x * LOG2_E). A GPU has an instruction for 2 ** x."""


@triton.jit
def load_tile(
    key_cache_ptr,
    value_cache_ptr,
    table_ptr,
    key_position,
    valid,
    kv_head,
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """K and V of one KV head for a tile of keys, [TILE, HEAD_SIZE] each. Given: the loads of lab 02-06.

    Args:
        table_ptr: where the sequence's row of the block table begins.
        key_position: [TILE], which keys.
        valid: [TILE], which of them to load. The others come as zeros, and nothing is read for them.
    """
    dim = tl.arange(0, HEAD_SIZE)
    block = tl.load(table_ptr + key_position // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
    slot = key_position % BLOCK_SIZE
    key_at = block * key_stride_block + slot * key_stride_slot + kv_head * key_stride_head
    key = tl.load(key_cache_ptr + key_at[:, None] + dim[None, :], mask=valid[:, None], other=0.0)
    value_at = block * value_stride_block + slot * value_stride_slot + kv_head * value_stride_head
    value = tl.load(
        value_cache_ptr + value_at[:, None] + dim[None, :], mask=valid[:, None], other=0.0
    )
    return key, value


@triton.jit
def softmax_step(scores, value, largest, total, acc):
    """The online softmax of lab 02-06, one tile further. Given.

    Args:
        scores: [ROWS, TILE], times scale_log2; -inf where a row must not see a key.
        value: [TILE, HEAD_SIZE], no NaN where a score is -inf.
        largest, total: [ROWS], float32; before the first tile -inf and 0.
        acc: [ROWS, HEAD_SIZE], float32; before the first tile 0.

    Returns:
        largest, total and acc with the tile in them. acc is not divided by total.
    """
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    rescale = tl.exp2(largest - new_largest)
    weight = tl.exp2(scores - new_largest[:, None])
    total = total * rescale + tl.sum(weight, 1)
    acc = acc * rescale[:, None]
    acc += tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return new_largest, total, acc


@triton.jit
def prefill_kernel(
    out_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    query_start_loc_ptr,
    scale_log2,
    out_stride_token,
    out_stride_head,
    query_stride_token,
    query_stride_head,
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    table_stride,
    GROUP: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Attention of a few tokens of one chunk, for the query heads that share a KV head.

    Program (b, h, s): tokens b * BLOCK_Q to b * BLOCK_Q + BLOCK_Q - 1 of sequence s's chunk, KV head h with
    its query heads h * GROUP to h * GROUP + GROUP - 1. The grid is made for the longest chunk, so in
    a shorter one the last programs have no token, and must do nothing.

    ROWS is a power of two, at least BLOCK_Q * GROUP. A row is a pair of a token and a head: row r is token
    r // GROUP of the program and head r % GROUP of the group. Rows past BLOCK_Q * GROUP, and rows past the
    end of the chunk, are padding: they must write nothing, because those places are another program's.

    scale_log2 is scale * LOG2_E: a score times that can go straight into tl.exp2.

    Recipe: find the chunk's rows and length in query_start_loc, and from seq_lens how many tokens come
    before it. Load the query, [ROWS, HEAD_SIZE]. Walk over the keys in tiles of TILE, from 0 to the last
    key that any token of this program sees, and no further; `load_tile` loads one, and only what you call
    valid. Scores, [ROWS, TILE], by tl.dot with input_precision="ieee", or a GPU rounds float32 to 10 bits;
    hide from each row the keys that its token does not see. `softmax_step` does the rest. Divide at the end,
    in float32, and store in out's dtype.
    """
    raise NotImplementedError


def paged_prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
) -> Tensor:
    """Start `prefill_kernel`, a program for each block of tokens, KV head and sequence. Given."""
    _, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    group = num_heads // num_kv_heads
    rows = 32
    block_q = rows // group
    longest = int(query_start_loc.diff().max())  # on a GPU this waits for the lengths
    out = query.new_empty(query.shape)
    prefill_kernel[triton.cdiv(longest, block_q), num_kv_heads, len(seq_lens)](
        out, query, key_cache, value_cache, block_table, seq_lens, query_start_loc, scale * LOG2_E,
        *out.stride()[:2], *query.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        GROUP=group, BLOCK_Q=block_q, ROWS=rows,
        HEAD_SIZE=head_size, BLOCK_SIZE=block_size, TILE=32, num_warps=8,
    )  # fmt: skip
    return out
