"""Causal prefill attention over a paged KV cache, in Triton: many query tokens a sequence.

Mirrors, where it prefills, `vllm/v1/attention/ops/triton_unified_attention.py:179 kernel_unified_attention`.
Shapes stand in `mini_vllm/gpu/attention.py`; K and V of the chunk are in the cache already.

A chunk is the last `query_len` tokens of a sequence of `seq_len`, and may start anywhere in it: its token
j stands at position `seq_len - query_len + j` and sees the keys up to there. So a program has many rows of
work for each key that it reads, and the multiplying sets the pace. What the kernel does about that:

- **A row is a (token, head) pair.** The query heads of one KV head meet the same keys, so `BLOCK_Q`
  tokens with `GROUP` heads each fill one matrix of `ROWS` rows, and tensor cores do both products.
- **The loop ends at the causal frontier**, the last position of the program's own tokens. Keys
  behind it are not loaded.
- **Only the tiles at the frontier are masked.** Every row sees each key of the tiles before them, so
  the first pass of the loop compares nothing and masks nothing: 402 instructions a tile on sm_90, 575
  with the masks, for 128 rows, 64 keys and heads of 128 numbers.
- **The longest programs start first.** The last tokens of a chunk see the most keys; begun last, they would
  keep a few multiprocessors busy while the others have nothing left.

Left out, and vLLM has it: sliding windows, soft caps, ALiBi, sinks, prefixes that see both ways,
quantised caches, tensor descriptors. Sums and maxima are float32; the weights are rounded to the cache's
dtype before they meet V, as at the pin.

Different on purpose: at the pin a program has 16 rows where a KV head has at most 16 query heads (`BLOCK_M`
in `vllm/v1/attention/ops/triton_unified_attention.py:763 unified_attention`), here up to 128, so K and V
are asked for an eighth as often. There a group that does not divide the 16 leaves rows over, and they
compute and store a token of the next program's once more; here such rows store nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_vllm.gpu.kernels import paged_decode as decode


@triton.jit
def find_sequence(query_start_loc_ptr, block, num_seqs, BLOCK_Q: tl.constexpr):
    """The sequence that query block `block` belongs to, by bisection
    (`vllm/v1/attention/ops/triton_attention_helpers.py:79 find_seq_idx`).

    Sequence i has the blocks from `query_start_loc[i] // BLOCK_Q + i` on: room for its tokens, rounded up,
    without counting the blocks of the sequences before it. So a sequence may have one block
    more than it needs.
    """
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        first = tl.load(query_start_loc_ptr + middle) // BLOCK_Q + middle
        if first <= block:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def prefill(
    out_ptr,  # [num_tokens, num_heads, HEAD_SIZE], like the query
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    query_start_loc_ptr,
    scale_log2,  # scale * LOG2_E; positive
    num_seqs,
    out_stride_token,  # strides count elements; the last axis of each tensor has stride 1
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
    GROUP: tl.constexpr,  # query heads of a KV head
    BLOCK_Q: tl.constexpr,  # query tokens of a program: ROWS // GROUP
    ROWS: tl.constexpr,  # a power of two, at least 16
    HEAD_SIZE: tl.constexpr,
    HEAD_PADDED: tl.constexpr,  # a power of two
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,  # keys a trip of the loop; a power of two, at least 16
):
    """`BLOCK_Q` tokens of one sequence's chunk, for the query heads of one KV head
    (`vllm/v1/attention/ops/triton_unified_attention.py:179 kernel_unified_attention`).

    Grid: (num_tokens // BLOCK_Q + num_seqs, num_kv_heads). Programs past a chunk's end do nothing.
    """
    # The first chunk need not begin at row 0: decodes may stand before it.
    block_q = tl.program_id(0) + tl.load(query_start_loc_ptr) // BLOCK_Q
    kv_head = tl.program_id(1)
    seq = find_sequence(query_start_loc_ptr, block_q, num_seqs, BLOCK_Q)
    start = tl.load(query_start_loc_ptr + seq)
    query_len = tl.load(query_start_loc_ptr + seq + 1) - start
    context_len = tl.load(seq_lens_ptr + seq) - query_len
    # The last block of the chunk, which sees the most keys, belongs to the first program.
    after_this = block_q - (start // BLOCK_Q + seq)
    first_token = (tl.cdiv(query_len, BLOCK_Q) - 1 - after_this) * BLOCK_Q
    if first_token < 0:
        return

    row = tl.arange(0, ROWS)
    dim = tl.arange(0, HEAD_PADDED)
    token = first_token + row // GROUP
    head = kv_head * GROUP + row % GROUP
    in_chunk = (row < BLOCK_Q * GROUP) & (token < query_len)
    in_head = dim < HEAD_SIZE
    in_query = in_chunk[:, None] & in_head[None, :]
    at = (start + token).to(tl.int64)  # tokens times heads times head size may pass 2 ** 31
    query_at = at * query_stride_token + head * query_stride_head
    query = tl.load(query_ptr + query_at[:, None] + dim[None, :], mask=in_query, other=0.0)

    table_ptr = block_table_ptr + seq * table_stride
    key_ptr = key_cache_ptr + kv_head * key_stride_head
    value_ptr = value_cache_ptr + kv_head * value_stride_head
    position = context_len + token
    # Every row sees the keys before `full`; none of this program's sees a key at `end` or behind.
    full = (context_len + first_token + 1) // TILE * TILE
    end = context_len + tl.minimum(first_token + BLOCK_Q, query_len)

    # The online softmax, as in `paged_decode.py`.
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_PADDED], tl.float32)

    # Compiled twice: once for the tiles that every row sees whole, once for those at the frontier.
    for MASKED in tl.static_range(2):
        for first in range(full if MASKED else 0, end if MASKED else full, TILE):
            key_position = first + tl.arange(0, TILE)
            slot = key_position % BLOCK_SIZE
            entry_ptr = table_ptr + key_position // BLOCK_SIZE
            if MASKED:
                before_end = key_position < end
                in_tile = before_end[:, None] & in_head[None, :]
                block = tl.load(entry_ptr, mask=before_end, other=0).to(tl.int64)
            else:
                in_tile = in_head[None, :]
                block = tl.load(entry_ptr).to(tl.int64)
            key_at = (block * key_stride_block + slot * key_stride_slot)[:, None] + dim[None, :]
            value_at = (block * value_stride_block + slot * value_stride_slot)[:, None] + dim[
                None, :
            ]
            if MASKED or HEAD_PADDED != HEAD_SIZE:
                key = tl.load(key_ptr + key_at, mask=in_tile, other=0.0)
                value = tl.load(value_ptr + value_at, mask=in_tile, other=0.0)
            else:
                key = tl.load(key_ptr + key_at)
                value = tl.load(value_ptr + value_at)

            scores = tl.dot(query, tl.trans(key), input_precision="ieee")
            if MASKED:
                visible = key_position[None, :] <= position[:, None]
                scores = tl.where(visible, scores, float("-inf"))
            # Key 0 is in the first tile and every row sees it, so no maximum stays -inf.
            # The maximum comes before the scale, which is positive: then the scale costs one multiplication a
            # row, and none a score, where it is fused with the subtraction.
            new_largest = tl.maximum(largest, tl.max(scores, 1) * scale_log2)
            rescale = tl.exp2(largest - new_largest)
            weight = tl.exp2(scores * scale_log2 - new_largest[:, None])
            total = total * rescale + tl.sum(weight, 1)
            acc = acc * rescale[:, None]
            acc = tl.dot(weight.to(value.dtype), value, acc, input_precision="ieee")
            largest = new_largest

    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    out_at = at * out_stride_token + head * out_stride_head
    tl.store(out_ptr + out_at[:, None] + dim[None, :], out, mask=in_query)


@dataclass(frozen=True)
class Plan:
    """How a call is cut into programs.

    Attributes:
        rows: (token, head) pairs of a program; a power of two, at least 16 and at least a KV head's group.
        tile: keys that a program takes at once; a power of two, at least 16.
        num_warps: groups of 32 threads that share a program.
        num_stages: how far loads run ahead. With 3 the table is read two tiles ahead, K and V one.
    """

    rows: int
    tile: int
    num_warps: int
    num_stages: int = 3


def plan_prefill(
    num_tokens: int,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    element_size: int,
    max_query_len: int,
    capability: int = 90,
    num_sms: int = 132,
) -> Plan:
    """A plan for a shape and a GPU; the defaults describe an H100.

    With tensor cores a program has 128 rows, so that each key that it loads is multiplied with as many;
    half as many where a head is longer than 128 numbers, because the accumulator lies in registers.
    Without them (float32, or a GPU before 80) it has 32, or 16 from 80 on, because larger tiles spill.

    Args:
        num_tokens: query tokens of all sequences.
        element_size: bytes of a number in the cache.
        max_query_len: no chunk is longer. A short chunk fills no more rows than it has.
        capability: 75, 80, 90, 100 … as Triton counts them.
        num_sms: multiprocessors of the GPU. Where there are fewer programs than these, rows are halved.
    """
    head_padded = triton.next_power_of_2(head_size)
    group = num_heads // num_kv_heads
    least = max(16, triton.next_power_of_2(group))
    if capability < 80 or element_size > 2:
        each = 32 if capability < 80 else 16  # rows, and accumulators of a thread
        rows = max(each, least)
        return Plan(rows, 16, max(4, rows * head_padded // (32 * each)))
    rows = min(128 if head_padded <= 128 else 64, triton.next_power_of_2(max_query_len * group))
    if rows == 128 and num_tokens * num_heads // rows < num_sms:
        rows = 64
    return Plan(max(rows, least), 64 if head_padded <= 128 else 32, 8)


def check_inputs(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    out: Tensor | None,
) -> None:
    """As `paged_decode.check_inputs`, and the two tensors that decoding does not have."""
    if query_start_loc.ndim != 1 or len(query_start_loc) < 1:
        raise ValueError(f"query_start_loc is [num_seqs + 1], got {[*query_start_loc.shape]}")
    if query_start_loc.dtype != torch.int32:
        raise ValueError(f"query_start_loc is int32, got {query_start_loc.dtype}")
    num_seqs = len(query_start_loc) - 1
    decode.check_inputs(query, key_cache, value_cache, block_table, seq_lens, out, num_seqs)


def paged_prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    *,
    max_query_len: int | None = None,
    max_seq_len: int | None = None,
    plan: Plan | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of each sequence's newest tokens, its chunk, to all tokens up to themselves.

    Args:
        query: `[num_tokens, num_heads, head_size]`, the chunks one behind the other; float16, bfloat16 or
            float32, as the caches.
        key_cache, value_cache, block_table, seq_lens: as `mini_vllm/gpu/attention.py` says, any
            strides but for the last axis.
        query_start_loc: int32 `[num_seqs + 1]`; sequence i has the rows from `query_start_loc[i]` to
            `query_start_loc[i + 1]`. The first need not begin at row 0. A chunk may have one token, or none.
        scale: what a score is multiplied by, mostly `head_size ** -0.5`; positive.
        max_query_len: the longest chunk, if the caller knows. The lengths lie on the GPU, and to ask for
            them would wait for everything before this call.
        max_seq_len: not needed: each program's loop ends where its tokens do. It stands here because
            all of the engine's attention is called alike.
        plan: how to cut the work; None: `plan_prefill`.
        out: where the result goes, any strides but for the last axis; None: a new tensor.

    Returns:
        `[num_tokens, num_heads, head_size]` in the query's dtype: `out`, where it was given. Rows before
        `query_start_loc[0]` and behind the last entry are left as they are.
    """
    check_inputs(query, key_cache, value_cache, block_table, seq_lens, query_start_loc, out)
    num_tokens, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    num_seqs, group = len(seq_lens), num_heads // num_kv_heads
    if plan is None:
        plan = plan_prefill(
            num_tokens, num_heads, num_kv_heads, head_size, query.element_size(),
            max_query_len or num_tokens, decode.compute_capability(), decode.multiprocessors(query),
        )  # fmt: skip
    if not scale > 0:
        raise ValueError(f"scale is positive, got {scale}")
    if plan.rows < group:
        raise ValueError(f"a program of {plan.rows} rows has no room for {group} query heads")
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    block_q = plan.rows // group
    prefill[num_tokens // block_q + num_seqs, num_kv_heads](
        out, query, key_cache, value_cache, block_table, seq_lens, query_start_loc,
        scale * decode.LOG2_E, num_seqs,
        *out.stride()[:2], *query.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        GROUP=group, BLOCK_Q=block_q, ROWS=plan.rows,
        HEAD_SIZE=head_size, HEAD_PADDED=triton.next_power_of_2(head_size),
        BLOCK_SIZE=block_size, TILE=plan.tile,
        num_warps=plan.num_warps, num_stages=plan.num_stages,
    )  # fmt: skip
    return out
