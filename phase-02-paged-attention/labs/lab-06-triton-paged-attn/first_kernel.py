"""A first Triton kernel: scale a vector, eight numbers a program. Runs in the interpreter, without a GPU."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported

import torch
import triton
import triton.language as tl


@triton.jit
def double(out_ptr, in_ptr, length, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < length
    x = tl.load(in_ptr + at, mask=inside, other=0.0)
    tl.store(out_ptr + at, 2 * x, mask=inside)


if __name__ == "__main__":
    x = torch.arange(20.0)
    out = torch.empty_like(x)
    double[(triton.cdiv(20, 8),)](out, x, 20, TILE=8)  # three programs; the last has four numbers
    print(out.int().tolist())
