"""A correct `paged_decode` that splits the keys of a sequence over programs and merges their parts."""

import torch
import triton
import triton.language as tl

SPLITS = 8
TILE = 32


@triton.jit
def decode_part(
    q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, part_ptr, top_ptr, total_ptr, scale,
    q_seq, q_head, k_block, k_slot, k_head, v_block, v_slot, v_head, table_seq,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    seq, kv, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lens_ptr + seq)
    per_split = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
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
        row = (seq * tl.num_programs(1) * GROUP + heads) * SPLITS + split
        tl.store(part_ptr + row[:, None] * HEAD + dims[None, :], acc, mask=real[:, None])
        tl.store(top_ptr + row, top, mask=real)
        tl.store(total_ptr + row, total, mask=real)


@triton.jit
def merge_parts(
    part_ptr, top_ptr, total_ptr, lens_ptr, out_ptr,
    HEAD: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    seq, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lens_ptr + seq)
    per_split = tl.cdiv(tl.cdiv(length, TILE), SPLITS) * TILE
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, HEAD)
    used = splits * per_split < length
    row = (seq * tl.num_programs(1) + head) * SPLITS + splits
    top = tl.load(top_ptr + row, mask=used, other=float("-inf"))
    total = tl.load(total_ptr + row, mask=used, other=0.0)
    part = tl.load(part_ptr + row[:, None] * HEAD + dims[None, :], mask=used[:, None], other=0.0)
    weight = tl.exp(top - tl.max(top, 0))
    out = tl.sum(part * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out_ptr + (seq * tl.num_programs(1) + head) * HEAD + dims, out)


def paged_decode(query, key_cache, value_cache, block_table, seq_lens, scale):
    num_seqs, num_heads, head_size = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    out = torch.empty((num_seqs, num_heads, head_size), dtype=query.dtype, device=query.device)
    shape = (num_seqs, num_heads, SPLITS)
    part = torch.empty((*shape, head_size), dtype=torch.float32, device=query.device)
    top = torch.empty(shape, dtype=torch.float32, device=query.device)
    total = torch.empty(shape, dtype=torch.float32, device=query.device)
    decode_part[(num_seqs, num_kv_heads, SPLITS)](
        query, key_cache, value_cache, block_table, seq_lens, part, top, total, scale,
        query.stride(0), query.stride(1), *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), HEAD=head_size, BLOCK=block_size,
        TILE=TILE, SPLITS=SPLITS,
    )  # fmt: skip
    merge_parts[(num_seqs, num_heads)](
        part, top, total, seq_lens, out, HEAD=head_size, TILE=TILE, SPLITS=SPLITS
    )
    return out
