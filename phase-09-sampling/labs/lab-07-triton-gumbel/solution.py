"""Lab 09-07: a token for each row, drawn without a state, in Triton.

Solution; what it solves stands in starter.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TINY = tl.constexpr(2.0**-126)  # the smallest normal float32


@triton.jit
def block_kernel(
    best_ptr,
    token_ptr,
    logits_ptr,
    idx_mapping_ptr,
    temperature_ptr,
    seeds_ptr,
    positions_ptr,
    logits_stride,
    vocab_size,
    num_blocks,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    block = tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    logits_at = logits_ptr + row * logits_stride + token
    score = tl.load(logits_at, mask=token < vocab_size, other=float("-inf")).to(tl.float32)

    slot = tl.load(idx_mapping_ptr + row)
    temperature = tl.load(temperature_ptr + slot)
    if temperature != 0.0:
        key = tl.randint(tl.load(seeds_ptr + slot), tl.load(positions_ptr + row))
        u = tl.maximum(tl.rand(key, token), TINY)
        score = score / temperature - tl.log(-tl.log(u))

    best, lane = tl.max(score, axis=0, return_indices=True)
    tl.store(best_ptr + row * num_blocks + block, best)
    tl.store(token_ptr + row * num_blocks + block, block * BLOCK + lane)


@triton.jit
def row_kernel(
    out_ptr,
    best_ptr,
    token_ptr,
    num_blocks,
    LANES: tl.constexpr,
):
    row = tl.program_id(0)
    block = tl.arange(0, LANES)
    best_at = best_ptr + row * num_blocks + block
    best = tl.load(best_at, mask=block < num_blocks, other=float("-inf"))
    first = tl.argmax(best, axis=0)
    tl.store(out_ptr + row, tl.load(token_ptr + row * num_blocks + first))


def gumbel_sample(
    logits: Tensor,
    idx_mapping: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    block_size: int = 1024,
) -> Tensor:
    """Start both kernels: one program for each block of each row, then one for each row. Given."""
    rows, vocab_size = logits.shape
    num_blocks = triton.cdiv(vocab_size, block_size)
    best = logits.new_empty(rows, num_blocks, dtype=torch.float32)
    token = logits.new_empty(rows, num_blocks, dtype=torch.int64)
    out = logits.new_empty(rows, dtype=torch.int64)
    block_kernel[(rows, num_blocks)](
        best, token, logits, idx_mapping, temperature, seeds, positions,
        logits.stride(0), vocab_size, num_blocks, BLOCK=block_size, num_warps=4,
    )  # fmt: skip
    lanes = triton.next_power_of_2(num_blocks)
    row_kernel[(rows,)](out, best, token, num_blocks, LANES=lanes, num_warps=1)
    return out
