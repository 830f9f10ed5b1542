"""A correct `paged_prefill`: a program's rows are head by head, and the last tokens of a chunk begin first.

Keys that all of its tokens see come before those that some do not, and are not masked for them.
"""

import torch
import triton
import triton.language as tl

TILE = 16
LOG2_E = 1.4426950408889634


@triton.jit
def head_prefill(
    q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, starts_ptr, out_ptr, scale_log2, num_kv_heads,
    q_tok, q_head, k_block, k_slot, k_head, v_block, v_slot, v_head, table_seq, out_tok, out_head,
    GROUP: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    seq, kv = tl.program_id(0) // num_kv_heads, tl.program_id(0) % num_kv_heads
    begin = tl.load(starts_ptr + seq)
    new = tl.load(starts_ptr + seq + 1) - begin
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * TOKENS
    if first < new:
        old = tl.load(lens_ptr + seq) - new
        rows, dims = tl.arange(0, ROWS), tl.arange(0, HEAD)
        tokens, heads = first + rows % TOKENS, rows // TOKENS
        real = (heads < GROUP) & (tokens < new)
        heads += kv * GROUP
        q_at = (begin + tokens) * q_tok + heads * q_head
        q = tl.load(q_ptr + q_at[:, None] + dims[None, :], mask=real[:, None], other=0.0)
        stop = old + tl.minimum(first + TOKENS, new)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, HEAD], tl.float32)
        for start in range(0, stop, TILE):
            at = start + tl.arange(0, TILE)
            inside = at < stop
            block = tl.load(table_ptr + seq * table_seq + at // BLOCK, mask=inside, other=0)
            block = block.to(tl.int64)
            k_at = block * k_block + (at % BLOCK) * k_slot + kv * k_head
            v_at = block * v_block + (at % BLOCK) * v_slot + kv * v_head
            k = tl.load(k_ptr + k_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
            v = tl.load(v_ptr + v_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
            if start + TILE > old + first:
                scores = tl.where(at[None, :] <= (old + tokens)[:, None], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - new_top[:, None])
            shrink = tl.exp2(top - new_top)
            total = total * shrink + tl.sum(weights, 1)
            acc = acc * shrink[:, None]
            acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
            top = new_top
        out_at = (begin + tokens) * out_tok + heads * out_head
        tl.store(
            out_ptr + out_at[:, None] + dims[None, :], acc / total[:, None], mask=real[:, None]
        )


def paged_prefill(query, key_cache, value_cache, block_table, seq_lens, query_start_loc, scale):
    num_tokens, num_heads, head_size = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    tokens = 32 // triton.next_power_of_2(group)
    longest = int(query_start_loc.diff().max())
    out = torch.empty((num_tokens, num_heads, head_size), dtype=query.dtype, device=query.device)
    head_prefill[(len(seq_lens) * num_kv_heads, triton.cdiv(longest, tokens))](
        query, key_cache, value_cache, block_table, seq_lens, query_start_loc, out, scale * LOG2_E,
        num_kv_heads, query.stride(0), query.stride(1), *key_cache.stride()[:3],
        *value_cache.stride()[:3], block_table.stride(0), out.stride(0), out.stride(1),
        GROUP=group, TOKENS=tokens, ROWS=32, HEAD=head_size, BLOCK=block_size, TILE=TILE, num_warps=8,
    )  # fmt: skip
    return out
