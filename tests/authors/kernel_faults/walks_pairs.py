"""A correct `paged_decode` with few programs: each walks over sequences and KV heads, a block at a time."""

import torch
import triton
import triton.language as tl


@triton.jit
def walk_decode(
    q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, out_ptr, scale, pairs, kv_heads,
    q_seq, q_head, k_block, k_slot, k_head, v_block, v_slot, v_head, table_seq, out_seq, out_head,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, dims, slots = tl.arange(0, ROWS), tl.arange(0, HEAD), tl.arange(0, BLOCK)
    real = rows < GROUP
    for pair in range(tl.program_id(0), pairs, tl.num_programs(0)):
        seq, kv = pair // kv_heads, pair % kv_heads
        length = tl.load(lens_ptr + seq)
        heads = kv * GROUP + rows
        q_at = seq * q_seq + heads[:, None] * q_head + dims[None, :]
        q = tl.load(q_ptr + q_at, mask=real[:, None], other=0.0).to(tl.float32) * scale
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, HEAD], tl.float32)
        for entry in range(tl.cdiv(length, BLOCK)):
            # One entry of the table for all keys of a block.
            block = tl.load(table_ptr + seq * table_seq + entry).to(tl.int64)
            inside = entry * BLOCK + slots < length
            k_at = block * k_block + slots * k_slot + kv * k_head
            v_at = block * v_block + slots * v_slot + kv * v_head
            k = tl.load(k_ptr + k_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
            v = tl.load(v_ptr + v_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
            scores = tl.sum(q[:, None, :] * k.to(tl.float32)[None, :, :], 2)
            scores = tl.where(inside[None, :], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp(scores - new_top[:, None])
            shrink = tl.exp(top - new_top)
            total = total * shrink + tl.sum(weights, 1)
            acc = acc * shrink[:, None]
            acc += tl.sum(weights[:, :, None] * v.to(tl.float32)[None, :, :], 1)
            top = new_top
        out_at = seq * out_seq + heads[:, None] * out_head + dims[None, :]
        tl.store(out_ptr + out_at, acc / total[:, None], mask=real[:, None])


def paged_decode(query, key_cache, value_cache, block_table, seq_lens, scale):
    num_seqs, num_heads, head_size = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group, pairs = num_heads // num_kv_heads, num_seqs * num_kv_heads
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    out = torch.empty((num_seqs, num_heads, head_size), dtype=query.dtype, device=query.device)
    walk_decode[(min(pairs, processors),)](
        query, key_cache, value_cache, block_table, seq_lens, out, scale, pairs, num_kv_heads,
        query.stride(0), query.stride(1), *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0), out.stride(0), out.stride(1),
        GROUP=group, ROWS=triton.next_power_of_2(group), HEAD=head_size, BLOCK=block_size,
    )  # fmt: skip
    return out
