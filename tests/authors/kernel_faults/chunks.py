"""A correct `paged_prefill`: a program finds its chunk by counting the blocks of those before it."""

import torch
import triton
import triton.language as tl

ROWS = 32
TILE = 32


@triton.jit
def chunk_prefill(
    q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, starts_ptr, out_ptr, scale,
    q_tok, q_head, k_block, k_slot, k_head, v_block, v_slot, v_head, table_seq, num_seqs,
    GROUP: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    kv, here = tl.program_id(0), tl.program_id(1)
    seq = 0
    before = 0
    blocks = tl.cdiv(tl.load(starts_ptr + 1), TOKENS)
    while (before + blocks <= here) & (seq + 1 < num_seqs):
        before += blocks
        seq += 1
        blocks = tl.cdiv(tl.load(starts_ptr + seq + 1) - tl.load(starts_ptr + seq), TOKENS)
    begin = tl.load(starts_ptr + seq)
    new = tl.load(starts_ptr + seq + 1) - begin
    old = tl.load(lens_ptr + seq) - new
    rows, dims, offsets = tl.arange(0, ROWS), tl.arange(0, HEAD), tl.arange(0, TILE)
    tokens = (here - before) * TOKENS + rows // GROUP
    heads = kv * GROUP + rows % GROUP
    real = (rows < TOKENS * GROUP) & (tokens < new)
    q_at = (begin + tokens) * q_tok + heads * q_head
    q = tl.load(q_ptr + q_at[:, None] + dims[None, :], mask=real[:, None], other=0.0)
    stop = old + tl.minimum((here - before + 1) * TOKENS, new)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    for start in range(0, stop, TILE):
        at = start + offsets
        inside = at < stop
        block = tl.load(table_ptr + seq * table_seq + at // BLOCK, mask=inside, other=0)
        block = block.to(tl.int64)
        k_at = block * k_block + (at % BLOCK) * k_slot + kv * k_head
        v_at = block * v_block + (at % BLOCK) * v_slot + kv * v_head
        k = tl.load(k_ptr + k_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(v_ptr + v_at[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = at[None, :] <= (old + tokens)[:, None]
        scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - new_top[:, None])
        shrink = tl.exp(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = new_top
    out_at = (begin + tokens) * (tl.num_programs(0) * GROUP * HEAD) + heads * HEAD
    tl.store(out_ptr + out_at[:, None] + dims[None, :], acc / total[:, None], mask=real[:, None])


def paged_prefill(query, key_cache, value_cache, block_table, seq_lens, query_start_loc, scale):
    num_tokens, num_heads, head_size = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    tokens = ROWS // group
    lens = query_start_loc.diff()
    blocks = int(((lens + tokens - 1) // tokens).sum())
    out = torch.empty((num_tokens, num_heads, head_size), dtype=query.dtype, device=query.device)
    chunk_prefill[(num_kv_heads, blocks)](
        query, key_cache, value_cache, block_table, seq_lens, query_start_loc, out, scale,
        query.stride(0), query.stride(1), *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0), len(seq_lens),
        GROUP=group, TOKENS=tokens, ROWS=ROWS, HEAD=head_size, BLOCK=block_size, TILE=TILE, num_warps=8,
    )  # fmt: skip
    return out
