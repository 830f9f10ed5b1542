"""A correct `split_decode`: a part is divided by its sum, and the merge weighs it by the sum's logarithm."""

import torch
import triton
import triton.language as tl

TILE = 32


@triton.jit
def decode_part(
    q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, part_ptr, lse_ptr, scale, per_split,
    q_seq, q_head, k_block, k_slot, k_head, v_block, v_slot, v_head, table_seq,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    seq, kv, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lens_ptr + seq)
    first = split * per_split
    last = tl.minimum(first + per_split, length)
    if first < last:
        rows, dims, offsets = tl.arange(0, ROWS), tl.arange(0, HEAD), tl.arange(0, TILE)
        heads = kv * GROUP + rows
        real = rows < GROUP
        q_at = seq * q_seq + heads[:, None] * q_head + dims[None, :]
        q = tl.load(q_ptr + q_at, mask=real[:, None], other=0.0)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, HEAD], tl.float32)
        for start in range(first, last, TILE):
            at = start + offsets
            inside = at < last
            block = tl.load(table_ptr + seq * table_seq + at // BLOCK, mask=inside, other=0)
            block = block.to(tl.int64)
            k_at = block * k_block + (at % BLOCK) * k_slot + kv * k_head
            v_at = block * v_block + (at % BLOCK) * v_slot + kv * v_head
            k = tl.load(k_ptr + k_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
            v = tl.load(v_ptr + v_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            scores = tl.where(inside[None, :], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp(scores - new_top[:, None])
            shrink = tl.exp(top - new_top)
            total = total * shrink + tl.sum(weights, 1)
            acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            top = new_top
        row = (seq * tl.num_programs(1) * GROUP + heads) * tl.num_programs(2) + split
        tl.store(
            part_ptr + row[:, None] * HEAD + dims[None, :], acc / total[:, None], mask=real[:, None]
        )
        tl.store(lse_ptr + row, top + tl.log(total), mask=real)


@triton.jit
def merge_parts(
    part_ptr, lse_ptr, lens_ptr, out_ptr, per_split, splits,
    HEAD: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    seq, head = tl.program_id(0), tl.program_id(1)
    used = tl.cdiv(tl.load(lens_ptr + seq), per_split)
    split, dims = tl.arange(0, MOST), tl.arange(0, HEAD)
    row = (seq * tl.num_programs(1) + head) * splits + split
    lse = tl.load(lse_ptr + row, mask=split < used, other=float("-inf"))
    part = tl.load(
        part_ptr + row[:, None] * HEAD + dims[None, :], mask=(split < used)[:, None], other=0.0
    )
    weight = tl.exp(lse - tl.max(lse, 0))
    out = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out_ptr + (seq * tl.num_programs(1) + head) * HEAD + dims, out)


def split_decode(query, key_cache, value_cache, block_table, seq_lens, scale, keys_per_split):
    num_seqs, num_heads, head_size = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    splits = triton.cdiv(block_table.shape[1] * block_size, keys_per_split)
    out = torch.empty((num_seqs, num_heads, head_size), dtype=query.dtype, device=query.device)
    part = torch.empty((num_seqs, num_heads, splits, head_size), device=query.device)
    lse = torch.empty((num_seqs, num_heads, splits), device=query.device)
    decode_part[(num_seqs, num_kv_heads, splits)](
        query, key_cache, value_cache, block_table, seq_lens, part, lse, scale, keys_per_split,
        query.stride(0), query.stride(1), *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), HEAD=head_size, BLOCK=block_size,
        TILE=TILE,
    )  # fmt: skip
    merge_parts[(num_seqs, num_heads)](
        part, lse, seq_lens, out, keys_per_split, splits,
        HEAD=head_size, MOST=triton.next_power_of_2(splits),
    )  # fmt: skip
    return out
