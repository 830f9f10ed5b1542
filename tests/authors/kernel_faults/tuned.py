"""A correct `paged_decode` with an autotuner: any of its configurations may be the fastest somewhere."""

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"TILE": 16}, num_warps=2, num_stages=2),
    triton.Config({"TILE": 32}, num_warps=4, num_stages=2),
    triton.Config({"TILE": 64}, num_warps=8, num_stages=2),
]


@triton.autotune(configs=CONFIGS, key=["HEAD", "GROUP"])
@triton.jit
def tuned_decode(
    q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, out_ptr, scale,
    q_seq, q_head, k_block, k_slot, k_head, v_block, v_slot, v_head, table_seq,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    seq, kv = tl.program_id(0), tl.program_id(1)
    length = tl.load(lens_ptr + seq)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, HEAD)
    real = rows < GROUP
    heads = kv * GROUP + rows
    q_at = seq * q_seq + heads[:, None] * q_head + dims[None, :]
    q = tl.load(q_ptr + q_at, mask=real[:, None], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    # From the last tile to the first: the order does not matter.
    for turn in range(tl.cdiv(length, TILE)):
        at = (tl.cdiv(length, TILE) - 1 - turn) * TILE + tl.arange(0, TILE)
        inside = at < length
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
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
        top = new_top
    out_at = (seq * tl.num_programs(1) * GROUP + heads[:, None]) * HEAD + dims[None, :]
    tl.store(out_ptr + out_at, acc / total[:, None], mask=real[:, None])


def paged_decode(query, key_cache, value_cache, block_table, seq_lens, scale):
    num_seqs, num_heads, head_size = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    out = torch.empty((num_seqs, num_heads, head_size), dtype=query.dtype, device=query.device)
    tuned_decode[(num_seqs, num_kv_heads)](
        query, key_cache, value_cache, block_table, seq_lens, out, scale,
        query.stride(0), query.stride(1), *key_cache.stride()[:3], *value_cache.stride()[:3],
        block_table.stride(0),
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), HEAD=head_size, BLOCK=block_size,
    )  # fmt: skip
    return out
