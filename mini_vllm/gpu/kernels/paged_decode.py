"""Decode attention over a paged KV cache, in Triton: one query token a sequence, many sequences.

Mirrors, where it decodes, `vllm/v1/attention/ops/triton_unified_attention.py:179 kernel_unified_attention`
and `vllm/v1/attention/ops/triton_unified_attention.py:646 reduce_segments`. Shapes stand in
`mini_vllm/gpu/attention.py`.

Decoding reads every K and V once and computes next to nothing with them, so memory sets the pace.
What the kernel does about that:

- **A program takes all query heads of one KV head.** With a program a query head, K and V would be
  read `num_heads / num_kv_heads` times. The heads are rows of a matrix, padded to 16, the least that
  a tensor core multiplies.
- **The keys of a sequence are split across programs.** One sequence with 8 KV heads would otherwise
  keep 8 of 132 multiprocessors busy. Each split leaves its sum, its maximum and its unfinished
  result; `merge_splits` puts them together.
- **A tile is 16 KiB of K and 16 KiB of V, whatever the block size.** Each key finds its block through
  the table, so a tile may take part of a block or many blocks. The `head_size` numbers of a key lie
  side by side, so each thread loads 16 bytes at once, and the next tile is under way while this one
  is computed with.

Left out, and vLLM has it: prefill (many query tokens a sequence), sliding windows, soft caps, ALiBi,
sinks, quantised caches, tensor descriptors. Sums and maxima are float32; the weights are rounded to
the cache's dtype before they meet V, as at the pin.

Different on purpose: vLLM cuts each sequence into 16 segments, however long it is; here a split has a
number of keys, so a long sequence in a ragged batch is not left with long splits. The table is read
only where the sequence has tokens; at the pin the last tile reads on to its end, beyond them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634
"""exp(x) = 2 ** (x * LOG2_E). The hardware has 2 ** x."""


@triton.jit
def decode_split(
    out_ptr,  # [num_seqs, num_heads, HEAD_SIZE], like the query; written where SPLIT is off
    part_out_ptr,  # float32 [num_seqs, num_heads, num_splits, HEAD_SIZE]; these three where it is on
    part_max_ptr,  # float32 [num_seqs, num_heads, num_splits]
    part_sum_ptr,  # float32 [num_seqs, num_heads, num_splits]
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    scale_log2,  # scale * LOG2_E
    keys_per_split,
    out_stride_seq,  # strides count elements; the last axis of each tensor has stride 1
    out_stride_head,
    query_stride_seq,
    query_stride_head,
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    table_stride,
    GROUP: tl.constexpr,  # query heads of a KV head
    GROUP_PADDED: tl.constexpr,  # a power of two, at least 16
    HEAD_SIZE: tl.constexpr,
    HEAD_PADDED: tl.constexpr,  # a power of two
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,  # keys a trip of the loop; a power of two, at least 16
    SPLIT: tl.constexpr,  # are there more splits than one?
):
    """Keys `split * keys_per_split` and following of one sequence, for the query heads of one KV head
    (`vllm/v1/attention/ops/triton_unified_attention.py:179 kernel_unified_attention`).

    Grid: (num_seqs, num_kv_heads, num_splits). A split that begins past the sequence's end does nothing.
    """
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq_len = tl.load(seq_lens_ptr + seq)
    start = split * keys_per_split
    if start >= seq_len:
        return
    end = tl.minimum(start + keys_per_split, seq_len)

    row = tl.arange(0, GROUP_PADDED)
    dim = tl.arange(0, HEAD_PADDED)
    head = kv_head * GROUP + row
    in_group = row < GROUP
    in_head = dim < HEAD_SIZE
    in_query = in_group[:, None] & in_head[None, :]
    query_at = seq * query_stride_seq + head[:, None] * query_stride_head + dim[None, :]
    query = tl.load(query_ptr + query_at, mask=in_query, other=0.0)

    table_ptr = block_table_ptr + seq * table_stride
    key_ptr = key_cache_ptr + kv_head * key_stride_head
    value_ptr = value_cache_ptr + kv_head * value_stride_head

    # The online softmax. After each tile, for each row: the largest score so far, the sum of
    # 2 ** (score - largest), and the same sum with each term times its V.
    largest = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PADDED], tl.float32)
    acc = tl.zeros([GROUP_PADDED, HEAD_PADDED], tl.float32)

    for first in range(start, end, TILE):
        position = first + tl.arange(0, TILE)
        valid = position < end
        block = tl.load(table_ptr + position // BLOCK_SIZE, mask=valid, other=0).to(tl.int64)
        slot = position % BLOCK_SIZE
        in_tile = valid[:, None]
        if HEAD_PADDED != HEAD_SIZE:
            in_tile = in_tile & in_head[None, :]
        key_at = (block * key_stride_block + slot * key_stride_slot)[:, None] + dim[None, :]
        key = tl.load(key_ptr + key_at, mask=in_tile, other=0.0)
        value_at = (block * value_stride_block + slot * value_stride_slot)[:, None] + dim[None, :]
        # A weight of 0 does not save a V that was never written: 0 * NaN is NaN. So V is masked too.
        value = tl.load(value_ptr + value_at, mask=in_tile, other=0.0)

        # "ieee": float32 caches are multiplied as float32, not rounded to tf32. 16 bits do not care.
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale_log2
        scores = tl.where(valid[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        rescale = tl.exp2(largest - new_largest)
        weight = tl.exp2(scores - new_largest[:, None])
        total = total * rescale + tl.sum(weight, 1)
        acc = acc * rescale[:, None]
        acc = tl.dot(weight.to(value.dtype), value, acc, input_precision="ieee")
        largest = new_largest

    if SPLIT:
        num_heads = tl.num_programs(1) * GROUP
        part = (seq * num_heads + head).to(tl.int64) * tl.num_programs(2) + split
        tl.store(part_max_ptr + part, largest, mask=in_group)
        tl.store(part_sum_ptr + part, total, mask=in_group)
        tl.store(part_out_ptr + part[:, None] * HEAD_SIZE + dim[None, :], acc, mask=in_query)
    else:
        out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
        out_at = seq * out_stride_seq + head[:, None] * out_stride_head + dim[None, :]
        tl.store(out_ptr + out_at, out, mask=in_query)


@triton.jit
def merge_splits(
    out_ptr,
    part_out_ptr,
    part_max_ptr,
    part_sum_ptr,
    seq_lens_ptr,
    keys_per_split,
    num_splits,
    out_stride_seq,
    out_stride_head,
    HEAD_SIZE: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    CHUNK: tl.constexpr,  # splits a trip of the loop; a power of two
):
    """One query head of one sequence, from its splits. Grid: (num_seqs, num_heads).
    Source: `vllm/v1/attention/ops/triton_unified_attention.py:646 reduce_segments`.

    The same recurrence once more: a split has a maximum, a sum and an unfinished result, as a key has
    a score, the weight 1 and a V.
    """
    seq = tl.program_id(0)
    head = tl.program_id(1)
    used = tl.cdiv(tl.load(seq_lens_ptr + seq), keys_per_split)
    dim = tl.arange(0, HEAD_PADDED)
    in_head = dim < HEAD_SIZE
    first_part = (seq * tl.num_programs(1) + head).to(tl.int64) * num_splits

    largest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([HEAD_PADDED], tl.float32)
    for first in range(0, used, CHUNK):
        split = first + tl.arange(0, CHUNK)
        valid = split < used
        part = first_part + split
        part_max = tl.load(part_max_ptr + part, mask=valid, other=float("-inf"))
        part_sum = tl.load(part_sum_ptr + part, mask=valid, other=0.0)
        part_at = part[:, None] * HEAD_SIZE + dim[None, :]
        in_part = valid[:, None] & in_head[None, :]
        part_out = tl.load(part_out_ptr + part_at, mask=in_part, other=0.0)

        new_largest = tl.maximum(largest, tl.max(part_max, 0))
        rescale = tl.exp2(largest - new_largest)
        weight = tl.exp2(part_max - new_largest)
        total = total * rescale + tl.sum(weight * part_sum, 0)
        acc = acc * rescale + tl.sum(weight[:, None] * part_out, 0)
        largest = new_largest

    out_at = seq * out_stride_seq + head * out_stride_head + dim
    tl.store(out_ptr + out_at, (acc / total).to(out_ptr.dtype.element_ty), mask=in_head)


@dataclass(frozen=True)
class Plan:
    """How a call is cut into programs.

    Attributes:
        tile: keys that a program takes at once; a power of two, at least 16.
        keys_per_split: keys that a program takes in all; a multiple of `tile`.
        num_splits: programs for each sequence and KV head. With 1 nothing is merged.
        num_warps: groups of 32 threads that share a program.
        num_stages: how far loads run ahead. With 3 the table is read two tiles ahead, K and V one.
    """

    tile: int
    keys_per_split: int
    num_splits: int
    num_warps: int = 8
    num_stages: int = 3

    def whole(self, max_seq_len: int) -> Plan:
        """The same with one program for all keys of a sequence, so that nothing is merged."""
        return replace(
            self, keys_per_split=triton.cdiv(max_seq_len, self.tile) * self.tile, num_splits=1
        )


def plan_decode(
    num_seqs: int,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    element_size: int,
    max_seq_len: int,
    capability: int = 90,
    num_sms: int = 132,
) -> Plan:
    """A plan for a shape and a GPU; the defaults describe an H100.

    Eight programs a multiprocessor level out what a ragged batch leaves uneven. But each split writes
    and reads `head_size + 2` float32 a query head, so splits are not made shorter than 256 keys for
    each query head of the group (0.8 % more bytes in 16 bits), unless a multiprocessor would get fewer
    than two programs, and never shorter than four tiles.

    Args:
        element_size: bytes of a number in the cache.
        max_seq_len: no sequence is longer; splits past a sequence's end cost only their launch.
        capability: 75, 80, 90, 100 … as Triton counts them. Before 80 the compiler has no asynchronous
            copy and multiplies without tensor cores, so tiles are a quarter of the size: larger ones spill.
        num_sms: multiprocessors of the GPU.
    """
    tile_bytes = 16384 if capability >= 80 else 4096
    tile = max(16, tile_bytes // (triton.next_power_of_2(head_size) * element_size))
    keys = num_seqs * num_kv_heads * max_seq_len
    group = num_heads // num_kv_heads
    keys_per_split = max(keys // (8 * num_sms), min(keys // (2 * num_sms), 256 * group), 4 * tile)
    keys_per_split = triton.cdiv(keys_per_split, tile) * tile
    return Plan(tile, keys_per_split, triton.cdiv(max_seq_len, keys_per_split))


def plan_for(query: Tensor, key_cache: Tensor, max_seq_len: int) -> Plan:
    """`plan_decode` for these tensors and the GPU that they lie on."""
    num_seqs, num_heads, head_size = query.shape
    return plan_decode(
        num_seqs, num_heads, key_cache.shape[2], head_size, query.element_size(), max_seq_len,
        compute_capability(), multiprocessors(query),
    )  # fmt: skip


def compute_capability() -> int:
    """The GPU that Triton compiles for, as 80 or 90; 90 where there is none (the interpreter)."""
    try:
        return int(triton.runtime.driver.active.get_current_target().arch)
    except RuntimeError:
        return 90


def multiprocessors(tensor: Tensor) -> int:
    """Of the GPU that the tensor lies on; on the CPU, under the interpreter, those of an H100."""
    if not tensor.is_cuda:
        return 132
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def check_inputs(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    out: Tensor | None = None,
    num_seqs: int | None = None,
) -> None:
    """Shapes, dtypes and strides; ValueError with the value that breaks the rule. Reads no tensor's data.

    A sequence has one query token, but for prefill, which says `num_seqs`.
    """
    tokens = "num_seqs" if num_seqs is None else "num_tokens"
    if query.ndim != 3 or key_cache.ndim != 4 or key_cache.shape != value_cache.shape:
        raise ValueError(
            f"query is [{tokens}, num_heads, head_size] and both caches [num_blocks, block_size, "
            f"num_kv_heads, head_size], got {[*query.shape]}, {[*key_cache.shape]}, {[*value_cache.shape]}"
        )
    num_tokens, num_heads, head_size = query.shape
    num_seqs = num_tokens if num_seqs is None else num_seqs
    num_kv_heads = key_cache.shape[2]
    if key_cache.shape[3] != head_size:
        raise ValueError(
            f"the caches' head size {key_cache.shape[3]} is not the query's {head_size}"
        )
    if num_heads % num_kv_heads:
        raise ValueError(
            f"{num_heads} query heads cannot share {num_kv_heads} KV heads: not a multiple"
        )
    if key_cache.dtype != query.dtype or value_cache.dtype != query.dtype:
        raise ValueError(
            f"query and caches have one dtype, got {query.dtype}, {key_cache.dtype}, {value_cache.dtype}"
        )
    if block_table.ndim != 2 or block_table.shape[0] != num_seqs or seq_lens.shape != (num_seqs,):
        raise ValueError(
            f"for {num_seqs} sequences block_table is [{num_seqs}, max_num_blocks] and seq_lens "
            f"[{num_seqs}], got {[*block_table.shape]} and {[*seq_lens.shape]}"
        )
    for name, tensor in (("block_table", block_table), ("seq_lens", seq_lens)):
        if tensor.dtype != torch.int32:
            raise ValueError(f"{name} is int32, got {tensor.dtype}")
    named = {"query": query, "key_cache": key_cache, "value_cache": value_cache}
    if out is not None:
        named["out"] = out
        if (out.shape, out.dtype) != (query.shape, query.dtype):
            raise ValueError(
                f"out is like the query, {[*query.shape]} of {query.dtype}, "
                f"got {[*out.shape]} of {out.dtype}"
            )
    for name, tensor in {**named, "block_table": block_table, "seq_lens": seq_lens}.items():
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"the last axis of {name} has stride 1, got {tensor.stride(-1)}")


def paged_decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    max_seq_len: int | None = None,
    plan: Plan | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of each sequence's newest token to all of its tokens.

    Args:
        query, key_cache, value_cache, block_table, seq_lens: as `mini_vllm/gpu/attention.py` says, float16,
            bfloat16 or float32, any strides but for the last axis.
        scale: what a score is multiplied by, mostly `head_size ** -0.5`.
        max_seq_len: the longest sequence, if the caller knows; otherwise all that the table has room for.
            The lengths lie on the GPU, and to ask for them would wait for everything before this call.
        plan: how to cut the work; None: `plan_decode`.
        out: where the result goes, any strides but for the last axis; None: a new tensor.

    Returns:
        `[num_seqs, num_heads, head_size]` in the query's dtype: `out`, where it was given.
    """
    check_inputs(query, key_cache, value_cache, block_table, seq_lens, out)
    num_seqs, num_heads, head_size = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    if plan is None:
        plan = plan_for(query, key_cache, max_seq_len or block_table.shape[1] * block_size)
    head_padded = triton.next_power_of_2(head_size)
    group = num_heads // num_kv_heads
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    # vLLM keeps these three from step to step; PyTorch's allocator hands the same memory out again.
    parts = (num_seqs, num_heads, plan.num_splits) if plan.num_splits > 1 else (0, 0, 0)
    part_out = torch.empty((*parts, head_size), dtype=torch.float32, device=query.device)
    part_max = torch.empty(parts, dtype=torch.float32, device=query.device)
    part_sum = torch.empty(parts, dtype=torch.float32, device=query.device)
    decode_split[num_seqs, num_kv_heads, plan.num_splits](
        out, part_out, part_max, part_sum,
        query, key_cache, value_cache, block_table, seq_lens,
        scale * LOG2_E, plan.keys_per_split,
        *out.stride()[:2], *query.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        GROUP=group, GROUP_PADDED=max(16, triton.next_power_of_2(group)),
        HEAD_SIZE=head_size, HEAD_PADDED=head_padded,
        BLOCK_SIZE=block_size, TILE=plan.tile, SPLIT=plan.num_splits > 1,
        num_warps=plan.num_warps, num_stages=plan.num_stages,
    )  # fmt: skip
    if plan.num_splits > 1:
        merge_splits[num_seqs, num_heads](
            out, part_out, part_max, part_sum, seq_lens,
            plan.keys_per_split, plan.num_splits, *out.stride()[:2],
            HEAD_SIZE=head_size, HEAD_PADDED=head_padded, CHUNK=16,
        )  # fmt: skip
    return out
