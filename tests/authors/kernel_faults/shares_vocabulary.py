"""A correct `gumbel_sample`: as many programs as processors for the blocks, and a merge in pieces."""

import torch
import triton
import triton.language as tl


@triton.jit
def shares_blocks(
    best, who, x, slots, temps, seeds, positions, x_row, V, units, blocks, B: tl.constexpr
):
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        row = unit // blocks
        block = unit % blocks
        slot = tl.load(slots + row)
        temp = tl.load(temps + slot)
        token = block * B + tl.arange(0, B)
        score = tl.load(x + row * x_row + token, mask=token < V, other=float("-inf"))
        score = score.to(tl.float32)
        if temp != 0:
            key = tl.randint(tl.load(seeds + slot), tl.load(positions + row))
            u = tl.maximum(tl.rand(key, token), 1.1754943508222875e-38)
            score = score / temp - tl.log(-tl.log(u))
        tl.store(best + unit, tl.max(score, 0))
        tl.store(who + unit, block * B + tl.argmax(score, 0))


@triton.jit
def merges_in_pieces(out, best, who, blocks, LANES: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, LANES)
    top = float("-inf")
    first = 0
    for start in range(0, blocks, LANES):
        there = start + lane < blocks
        scores = tl.load(best + row * blocks + start + lane, mask=there, other=float("-inf"))
        most = tl.max(scores, 0)
        if most > top:
            top = most
            first = start + tl.argmax(scores, 0)
    tl.store(out + row, tl.load(who + row * blocks + first))


def gumbel_sample(logits, idx_mapping, temperature, seeds, positions, block_size):
    rows, V = logits.shape
    blocks = triton.cdiv(V, block_size)
    best = torch.empty(rows, blocks, dtype=torch.float32, device=logits.device)
    who = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    processors = torch.cuda.get_device_properties(logits.device).multi_processor_count
    shares_blocks[(min(processors, rows * blocks),)](
        best, who, logits, idx_mapping, temperature, seeds, positions, logits.stride(0), V,
        rows * blocks, blocks, B=block_size,
    )  # fmt: skip
    merges_in_pieces[(rows,)](out, best, who, blocks, LANES=32)
    return out
