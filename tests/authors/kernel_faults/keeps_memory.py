"""A correct `split_decode` in one launch, whose memory is kept from call to call.

The last program of a sequence merges, and sets the counter back to 0 for the next call. What else lies in the
memory is old, and is never read.
"""

import torch
import triton
import triton.language as tl

TILE = 32
_memory = {}


@triton.jit
def decode_and_merge(
    q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, out_ptr, part_ptr, top_ptr, total_ptr, count_ptr, scale,
    per_split, q_seq, q_head, k_block, k_slot, k_head, v_block, v_slot, v_head, table_seq,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    seq, kv, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lens_ptr + seq)
    used = tl.cdiv(length, per_split)
    if split < used:
        first = split * per_split
        last = tl.minimum(first + per_split, length)
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
            acc = acc * shrink[:, None]
            acc += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            top = new_top
        row = (seq * tl.num_programs(1) * GROUP + heads) * tl.num_programs(2)
        tl.store(part_ptr + (row + split)[:, None] * HEAD + dims[None, :], acc, mask=real[:, None])
        tl.store(top_ptr + row + split, top, mask=real)
        tl.store(total_ptr + row + split, total, mask=real)
        tl.debug_barrier()  # every warp has stored before one of them counts
        count_at = count_ptr + seq * tl.num_programs(1) + kv
        if tl.atomic_add(count_at, 1) == used - 1:
            best = tl.full([ROWS], float("-inf"), tl.float32)
            for other in range(used):
                best = tl.maximum(best, tl.load(top_ptr + row + other, mask=real, other=0.0))
            total = tl.zeros([ROWS], tl.float32)
            acc = tl.zeros([ROWS, HEAD], tl.float32)
            for other in range(used):
                weight = tl.exp(tl.load(top_ptr + row + other, mask=real, other=0.0) - best)
                total += weight * tl.load(total_ptr + row + other, mask=real, other=1.0)
                part_at = (row + other)[:, None] * HEAD + dims[None, :]
                acc += weight[:, None] * tl.load(part_ptr + part_at, mask=real[:, None], other=0.0)
            out_at = (seq * tl.num_programs(1) * GROUP + heads[:, None]) * HEAD + dims[None, :]
            tl.store(out_ptr + out_at, acc / total[:, None], mask=real[:, None])
            tl.atomic_xchg(count_at, 0)


def split_decode(query, key_cache, value_cache, block_table, seq_lens, scale, keys_per_split):
    num_seqs, num_heads, head_size = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    splits = triton.cdiv(block_table.shape[1] * block_size, keys_per_split)
    shape = (num_seqs, num_heads, splits, head_size)
    if shape not in _memory:
        _memory[shape] = (
            torch.empty(shape, dtype=torch.float32, device=query.device),
            torch.empty(shape[:3], dtype=torch.float32, device=query.device),
            torch.empty(shape[:3], dtype=torch.float32, device=query.device),
            torch.zeros((num_seqs, num_kv_heads), dtype=torch.int32, device=query.device),
        )
    out = torch.empty((num_seqs, num_heads, head_size), dtype=query.dtype, device=query.device)
    decode_and_merge[(num_seqs, num_kv_heads, splits)](
        query, key_cache, value_cache, block_table, seq_lens, out, *_memory[shape], scale,
        keys_per_split, query.stride(0), query.stride(1), *key_cache.stride()[:3],
        *value_cache.stride()[:3], block_table.stride(0),
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), HEAD=head_size, BLOCK=block_size,
        TILE=TILE,
    )  # fmt: skip
    return out
