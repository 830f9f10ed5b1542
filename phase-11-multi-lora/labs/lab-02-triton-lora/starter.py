"""Lab 11-02: shrink and expand of a step with several adapters, in Triton.

`shrink_kernel` and `expand_kernel` are yours. The function that starts them is given. Lab 02-06's README
explains Triton.

Shapes; the last axis of each has stride 1:

    x              [rows, inputs], float16 or float32
    y, out         [rows, outputs], x's dtype, without gaps; the outputs of slice s begin at slice_starts[s]
    lora_a         [slices, slots, rank, inputs], x's dtype, without gaps
    lora_b         [slots, outputs, rank], x's dtype, without gaps, already scaled
    mid            [slices, rows, rank], float32, without gaps; holds anything at first
    slice_starts   int32 [slices + 1]; the last is `outputs`
    sorted_rows    int32 [rows], the rows of group 0 in any order, then those of group 1, and so on
    counts         int32 [slots + 1], how many rows each group has
    starts         int32 [slots + 2], where in sorted_rows each group begins
    slots          int32 [slots + 1], the slot of each group; -1: no adapter, or no such group

In a step whose rows have the slots 2, none, 2, 0, the lists are sorted_rows [1, 3, 0, 2], slots [-1, 0,
2, -1], counts [1, 1, 2, ?] and starts [0, 1, 2, ?, ?]: what stands at ? may be anything. So may what
lora_a and lora_b hold in slots without a row, and x in rows without an adapter, NaN included. All offsets
stay below 2**31.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def predictions() -> dict[str, Any]:
    """Your answers to the README's four questions, under the names given there."""
    raise NotImplementedError


@triton.jit
def shrink_kernel(
    mid_ptr,
    x_ptr,
    a_ptr,
    sorted_rows_ptr,
    counts_ptr,
    starts_ptr,
    slots_ptr,
    num_rows,
    num_slots,
    rank,
    inputs,
    x_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Each row times A of slice s: `mid[s, row] = x[row] @ lora_a[s, slot].T`.

    Program (t, s, g): slice s, and rows t * BLOCK_M and following of group g. As many tiles are started
    for each group as all rows of the step fill, so most programs find no row: they, and those of a group
    without an adapter, must end without loading anything of x or A.

    Find the program's rows: a tile of BLOCK_M entries of sorted_rows. In the last tile of a group some
    lanes have none: nothing may be loaded or stored for them. Then walk over the inputs, BLOCK_K at a
    time: gather the rows of x, load the tile of the slot's A, and add up in float32, with tl.dot(x, a,
    sums, input_precision="ieee"). Store each row at its own place in mid; no other row of mid may be
    touched.

    `if` takes a number, such as one loaded from a single address. num_rows, num_slots, rank, inputs: how
    many there are; x_stride counts elements from one row of x to the next. BLOCK_M, BLOCK_R and BLOCK_K
    are powers of two, at least 16. A tile of BLOCK_R lanes holds the whole rank, which may be less, 8 for
    instance. `inputs` need not be a multiple of BLOCK_K.
    """
    raise NotImplementedError


@triton.jit
def expand_kernel(
    out_ptr,
    mid_ptr,
    b_ptr,
    slice_starts_ptr,
    sorted_rows_ptr,
    counts_ptr,
    starts_ptr,
    slots_ptr,
    num_rows,
    num_tiles,
    rank,
    outputs,
    ALIGN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add a slice's deltas in place: `out[row, n] += mid[s, row] @ lora_b[slot, n]`, n from slice s.

    Program (p, s, g): of group g the tile p % num_tiles of BLOCK_M rows, and of slice s the block p //
    num_tiles of BLOCK_N outputs. `out` holds y, the base's result, in every row. As many blocks are
    started for each slice as the widest needs. Programs without a row, without an adapter or without an
    output must end without loading anything of mid, B or out.

    Load the tile of mid and the tile of B as tl.dot takes them, mid rounded to B's dtype, and multiply
    with tl.dot(mid, b, input_precision="ieee"). Load the tile of out, add in float32, and store it in
    out's dtype. Rows without an adapter, and the outputs of other slices, keep what they hold.

    ALIGN divides every entry of slice_starts. Tell the compiler, with tl.multiple_of(number, ALIGN)
    around those that you load, or it can load and store `out` only two bytes at a time. Widths need not
    be multiples of BLOCK_N. The other parameters are as in shrink_kernel; `outputs` is the number of all
    slices' outputs.
    """
    raise NotImplementedError


@triton.jit
def copy_kernel(out_ptr, y_ptr, size, BLOCK: tl.constexpr):
    """Stands for the base layer, whose result `out` would be. Given."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(y_ptr + at, mask=at < size, other=0.0), mask=at < size)


def compute_capability() -> int:
    """The GPU that Triton compiles for, as 80 or 90; 90 where there is none (the interpreter). Given."""
    try:
        return int(triton.runtime.driver.active.get_current_target().arch)
    except RuntimeError:
        return 90


def add_lora(
    y: Tensor,
    x: Tensor,
    lora_a: Tensor,
    lora_b: Tensor,
    slice_starts: Tensor,
    widths: list[int],
    sorted_rows: Tensor,
    counts: Tensor,
    starts: Tensor,
    slots: Tensor,
) -> Tensor:
    """Start both kernels, for every tile that any group may have. Given."""
    slices, num_slots, rank, inputs = lora_a.shape
    rows, outputs = y.shape
    tensor_cores = x.dtype != torch.float32 and compute_capability() >= 80
    block_m, block_n, block_r = 16, 64, max(16, triton.next_power_of_2(rank))
    block_k = 128 if tensor_cores else 64
    tiles = triton.cdiv(rows, block_m)
    out = torch.empty_like(y)
    copy_kernel[(triton.cdiv(y.numel(), 1024),)](out, y, y.numel(), BLOCK=1024)

    mid = y.new_empty(slices, rows, rank, dtype=torch.float32)
    lists = sorted_rows, counts, starts, slots
    shrink_kernel[(tiles, slices, len(slots))](
        mid, x, lora_a, *lists, rows, num_slots, rank, inputs, x.stride(0),
        BLOCK_M=block_m, BLOCK_R=block_r, BLOCK_K=block_k, num_warps=4, num_stages=3,
    )  # fmt: skip
    expand_kernel[(tiles * triton.cdiv(max(widths), block_n), slices, len(slots))](
        out, mid, lora_b, slice_starts, *lists, rows, tiles, rank, outputs,
        ALIGN=math.gcd(16, *widths), BLOCK_M=block_m, BLOCK_R=block_r, BLOCK_N=block_n, num_warps=4,
    )  # fmt: skip
    return out
