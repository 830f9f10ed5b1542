"""A correct `gumbel_sample`: the best of each block, block after block in memory; then the best of those."""

import torch
import triton
import triton.language as tl


@triton.jit
def noise_of(seed, position, tokens):
    u = tl.maximum(tl.rand(tl.randint(seed, position), tokens), 1.1754943508222875e-38)
    return -tl.log(-tl.log(u))


@triton.jit
def compete(
    top_ptr, who_ptr, x, idx, temps, seeds, positions, x_stride, V, rows, B: tl.constexpr
):  # fmt: skip
    b = tl.program_id(0)
    n = tl.program_id(1)
    i = tl.arange(0, B)
    t = b * B + i
    live = t < V
    s = tl.load(x + n * x_stride + t, mask=live, other=float("-inf")).to(tl.float32)
    req = tl.load(idx + n)
    temp = tl.load(temps + req)
    noise = noise_of(tl.load(seeds + req), tl.load(positions + n), t)
    hot = s / tl.where(temp == 0, 1.0, temp) + noise
    s = tl.where(temp == 0, s, hot)
    top = tl.max(s, 0)
    who = tl.min(tl.where(s == top, t, 2147483647), 0)
    tl.store(top_ptr + b * rows + n, top)
    tl.store(who_ptr + b * rows + n, who)


@triton.jit
def finish(out, top_ptr, who_ptr, blocks, rows, WIDTH: tl.constexpr):
    n = tl.program_id(0)
    b = tl.arange(0, WIDTH)
    ok = b < blocks
    tops = tl.load(top_ptr + b * rows + n, mask=ok, other=float("-inf"))
    whos = tl.load(who_ptr + b * rows + n, mask=ok, other=2147483647)
    best = tl.max(tops, 0)
    tl.store(out + n, tl.min(tl.where(tops == best, whos, 2147483647), 0))


def gumbel_sample(logits, idx_mapping, temperature, seeds, positions, block_size):
    n, V = logits.shape
    blocks = triton.cdiv(V, block_size)
    top = torch.empty(blocks, n, dtype=torch.float32, device=logits.device)
    who = torch.empty(blocks, n, dtype=torch.int32, device=logits.device)
    out = torch.empty(n, dtype=torch.int64, device=logits.device)
    compete[(blocks, n)](
        top, who, logits, idx_mapping, temperature, seeds, positions, logits.stride(0), V, n,
        B=block_size,
    )  # fmt: skip
    finish[(n,)](out, top, who, blocks, n, WIDTH=triton.next_power_of_2(blocks))
    return out
