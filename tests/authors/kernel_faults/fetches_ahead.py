"""A correct `paged_decode_one` that loads the next keys while it works on these, in their own precision."""

import torch
import triton
import triton.language as tl

TILE = 32


@triton.jit
def keys_of(
    k_ptr, table_ptr, start, length, k_block, k_slot, dims, BLOCK: tl.constexpr, TILE: tl.constexpr
):
    at = start + tl.arange(0, TILE)
    block = tl.load(table_ptr + at // BLOCK, mask=at < length, other=0).to(tl.int64)
    k_at = block * k_block + (at % BLOCK) * k_slot
    return tl.load(k_ptr + k_at[:, None] + dims[None, :], mask=(at < length)[:, None], other=0.0)


@triton.jit
def decode_ahead(
    q_ptr, k_ptr, v_ptr, table_ptr, out_ptr, length, scale,
    q_head, k_block, k_slot, k_head, v_block, v_slot, v_head,
    HEAD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    dims = tl.arange(0, HEAD)
    q = tl.load(q_ptr + head * q_head + dims).to(tl.float32) * scale * 1.4426950408889634
    mine = k_ptr + head * k_head
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([HEAD], tl.float32)
    k = keys_of(mine, table_ptr, 0, length, k_block, k_slot, dims, BLOCK, TILE)
    for start in range(0, length, TILE):
        ahead = keys_of(mine, table_ptr, start + TILE, length, k_block, k_slot, dims, BLOCK, TILE)
        at = start + tl.arange(0, TILE)
        inside = at < length
        scores = tl.sum(q[None, :] * k.to(tl.float32), 1)
        scores = tl.where(inside, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 0))
        weights = tl.exp2(scores - new_top)
        shrink = tl.exp2(top - new_top)
        block = tl.load(table_ptr + at // BLOCK, mask=inside, other=0).to(tl.int64)
        v_at = block * v_block + (at % BLOCK) * v_slot + head * v_head
        v = tl.load(v_ptr + v_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink + tl.sum(weights[:, None] * v.to(tl.float32), 0)
        top = new_top
        k = ahead
    tl.store(out_ptr + head * HEAD + dims, acc / total)


def paged_decode_one(query, key_cache, value_cache, block_table, seq_len, scale):
    num_heads, head_size = query.shape
    out = torch.empty((num_heads, head_size), dtype=query.dtype, device=query.device)
    decode_ahead[(num_heads,)](
        query, key_cache, value_cache, block_table, out, seq_len, scale,
        query.stride(0), *key_cache.stride()[:3], *value_cache.stride()[:3],
        HEAD=head_size, BLOCK=key_cache.shape[1], TILE=TILE,
    )  # fmt: skip
    return out
