"""A correct `split_decode`: the parts of one split lie side by side, and 16 of them are merged at a time.

A split's keys are taken from the last tile to the first.
"""

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


@triton.jit
def one_split(
    q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, part_ptr, top_ptr, total_ptr, scale_log2, per_split,
    num_kv_heads, num_rows,
    q_seq, q_head, k_block, k_slot, k_head, v_block, v_slot, v_head, table_seq,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    split, pair = tl.program_id(0), tl.program_id(1)
    seq, kv = pair // num_kv_heads, pair % num_kv_heads
    first = split * per_split
    keys = tl.minimum(tl.load(lens_ptr + seq) - first, per_split)
    if keys <= 0:
        return
    rows, dims = tl.arange(0, ROWS), tl.arange(0, HEAD)
    heads, real = kv * GROUP + rows, rows < GROUP
    q_at = seq * q_seq + heads[:, None] * q_head + dims[None, :]
    q = tl.load(q_ptr + q_at, mask=real[:, None], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    tiles = tl.cdiv(keys, TILE)
    for turn in range(tiles):
        mine = (tiles - 1 - turn) * TILE + tl.arange(0, TILE)
        inside, at = mine < keys, first + mine
        block = tl.load(table_ptr + seq * table_seq + at // BLOCK, mask=inside, other=0)
        block = block.to(tl.int64)
        k_at = block * k_block + (at % BLOCK) * k_slot + kv * k_head
        v_at = block * v_block + (at % BLOCK) * v_slot + kv * v_head
        k = tl.load(k_ptr + k_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(v_ptr + v_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
        top = new_top
    row = split * num_rows + seq * num_kv_heads * GROUP + heads
    tl.store(part_ptr + row[:, None] * HEAD + dims[None, :], acc, mask=real[:, None])
    tl.store(top_ptr + row, top, mask=real)
    tl.store(total_ptr + row, total, mask=real)


@triton.jit
def merge_some(
    part_ptr, top_ptr, total_ptr, lens_ptr, out_ptr, per_split, num_heads,
    HEAD: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    here = tl.program_id(0)
    used = tl.cdiv(tl.load(lens_ptr + here // num_heads), per_split)
    dims = tl.arange(0, HEAD)
    best = -float("inf")
    total = 0.0
    acc = tl.zeros([HEAD], tl.float32)
    for first in range(0, used, AT_ONCE):
        split = first + tl.arange(0, AT_ONCE)
        there = split < used
        row = split * tl.num_programs(0) + here
        top = tl.load(top_ptr + row, mask=there, other=-float("inf"))
        sums = tl.load(total_ptr + row, mask=there, other=0.0)
        part_at = row[:, None] * HEAD + dims[None, :]
        parts = tl.load(part_ptr + part_at, mask=there[:, None], other=0.0)
        new_best = tl.maximum(best, tl.max(top, 0))
        weight = tl.exp2(top - new_best)
        shrink = tl.exp2(best - new_best)
        total = total * shrink + tl.sum(sums * weight, 0)
        acc = acc * shrink + tl.sum(parts * weight[:, None], 0)
        best = new_best
    tl.store(out_ptr + here * HEAD + dims, acc / total)


def split_decode(query, key_cache, value_cache, block_table, seq_lens, scale, keys_per_split):
    num_seqs, num_heads, head_size = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group, rows = num_heads // num_kv_heads, num_seqs * num_heads
    splits = triton.cdiv(block_table.shape[1] * block_size, keys_per_split)
    out = torch.empty((num_seqs, num_heads, head_size), dtype=query.dtype, device=query.device)
    part = torch.empty((splits, rows, head_size), dtype=torch.float32, device=query.device)
    top, total = torch.empty((2, splits, rows), dtype=torch.float32, device=query.device)
    one_split[(splits, num_seqs * num_kv_heads)](
        query, key_cache, value_cache, block_table, seq_lens, part, top, total, scale * LOG2_E,
        keys_per_split, num_kv_heads, rows,
        query.stride(0), query.stride(1), *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), HEAD=head_size, BLOCK=block_size,
        TILE=16,
    )  # fmt: skip
    merge_some[(rows,)](
        part, top, total, seq_lens, out, keys_per_split, num_heads, HEAD=head_size, AT_ONCE=16
    )
    return out
