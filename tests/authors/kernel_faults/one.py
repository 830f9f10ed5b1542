"""A correct `paged_decode_one`: one program a head, one sequence."""

import torch
import triton
import triton.language as tl


@triton.jit
def decode_one(
    q_ptr, k_ptr, v_ptr, table_ptr, out_ptr, length, scale,
    q_head, k_block, k_slot, k_head, v_block, v_slot, v_head,
    HEAD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    dims, offsets = tl.arange(0, HEAD), tl.arange(0, TILE)
    q = tl.load(q_ptr + head * q_head + dims).to(tl.float32)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([HEAD], tl.float32)
    for start in range(0, length, TILE):
        at = start + offsets
        inside = at < length
        block = tl.load(table_ptr + at // BLOCK, mask=inside, other=0)
        block = block.to(tl.int64)
        k_at = block * k_block + (at % BLOCK) * k_slot + head * k_head
        v_at = block * v_block + (at % BLOCK) * v_slot + head * v_head
        k = tl.load(k_ptr + k_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(v_ptr + v_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        scores = tl.sum(q[None, :] * k.to(tl.float32), 1) * scale
        scores = tl.where(inside, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 0))
        weights = tl.exp(scores - new_top)
        shrink = tl.exp(top - new_top)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink + tl.sum(weights[:, None] * v.to(tl.float32), 0)
        top = new_top
    tl.store(out_ptr + head * HEAD + dims, acc / total)


def paged_decode_one(query, key_cache, value_cache, block_table, seq_len, scale):
    num_heads, head_size = query.shape
    out = torch.empty((num_heads, head_size), dtype=query.dtype, device=query.device)
    decode_one[(num_heads,)](
        query, key_cache, value_cache, block_table, out, seq_len, scale,
        query.stride(0), *key_cache.stride()[:3], *value_cache.stride()[:3],
        HEAD=head_size, BLOCK=key_cache.shape[1], TILE=16,
    )  # fmt: skip
    return out
