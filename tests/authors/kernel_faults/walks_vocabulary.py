"""A correct `gumbel_sample`: one program for a row, which walks over its logits and keeps the best."""

import torch
import triton
import triton.language as tl


@triton.jit
def walks_vocabulary(
    out_ptr, x_ptr, slot_ptr, temp_ptr, seed_ptr, pos_ptr, x_stride, vocab, TILE: tl.constexpr
):
    r = tl.program_id(0)
    slot = tl.load(slot_ptr + r)
    temp = tl.load(temp_ptr + slot)
    key = tl.randint(tl.load(seed_ptr + slot), tl.load(pos_ptr + r))
    x_ptr += r.to(tl.int64) * x_stride
    best = float("-inf")
    winner = 0
    for start in range(0, vocab, TILE):
        ids = start + tl.arange(0, TILE)
        x = tl.load(x_ptr + ids, mask=ids < vocab, other=0.0).to(tl.float32)
        if temp > 0:
            u = tl.rand(key, ids)
            u = tl.where(u < 1.1754943508222875e-38, 1.1754943508222875e-38, u)
            x = x / temp + -tl.log(-tl.log(u))
        x = tl.where(ids < vocab, x, float("-inf"))
        top = tl.max(x, 0)
        if top > best:
            best = top
            winner = start + tl.argmax(x, 0)
    tl.store(out_ptr + r, winner)


def gumbel_sample(logits, idx_mapping, temperature, seeds, positions, block_size):
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    walks_vocabulary[(rows,)](
        tokens, logits, idx_mapping, temperature, seeds, positions, logits.stride(0), vocab,
        TILE=min(block_size, 2048),
    )  # fmt: skip
    return tokens
