"""Lab 06-07: a linear layer with 4-bit weights, in Triton.

`unpack` and `multiply_tile` are yours. Given are the kernel that walks over the tiles with them, the one that
adds splits, and the function that starts both. Lab 02-06's README says what Triton is.

Shapes; the last axis of each has stride 1:

    x               [num_rows, in_features], float16 or float32
    weight_packed   int32 [out_features, in_features / 8]
    weight_scale    [out_features, groups], x's dtype
    out             [num_rows, out_features], x's dtype, without gaps

A word of weight_packed holds the codes of eight neighbouring inputs, 4 bits each, that of the first in the
lowest bits. A weight is its code less 8, times the scale of its group; a group is GROUP neighbouring inputs,
a multiple of 8. compressed-tensors saves a symmetric layer so, and so does `mini-vllm quantize` with
`--method int4-g32`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def unpack(packed, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """The numbers -8 to 7 that the codes of a tile stand for.

    packed: int32 [BLOCK_N, BLOCK_K / 8]. Returns integers [BLOCK_N, BLOCK_K], in the order of the inputs.

    Every code comes from a word that is already loaded: load nothing here. A tile may have three axes
    for a while; tl.reshape brings the last two together, the last one running fastest.
    """
    raise NotImplementedError


@triton.jit
def multiply_tile(
    x_ptr,
    packed_ptr,
    scale_ptr,
    tile,
    row,
    output,
    in_rows,
    in_outputs,
    x_stride,
    packed_stride,
    scale_stride,
    GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """What the inputs of one tile add to BLOCK_N outputs of BLOCK_M rows: float32 [BLOCK_N, BLOCK_M].

    The inputs are walked over in tiles of BLOCK_K. Each group has tiles of its own, GROUP / BLOCK_K of them,
    rounded up; if that division leaves a rest, the last tile of a group ends where the group does. So all
    inputs of a tile share one scale. `tile` is a tile's number, counted from the first group's first.

    Load the words, the rows of x and a scale for each output, each once; unpack; multiply with tl.dot, the
    weights on the left, in x's dtype, input_precision="ieee"; multiply the result by the scales, in float32.

    row, output: int64 [BLOCK_M] and [BLOCK_N], the numbers of this program's rows and outputs. in_rows and
    in_outputs are False where there is no such row or output: such lanes must load nothing, and what you
    return for them is not stored. BLOCK_N and BLOCK_K are powers of two, at least 16; GROUP is any multiple
    of 8. The strides count elements from one row of x, of words or of scales to the next.
    """
    raise NotImplementedError


@triton.jit
def w4a16_kernel(
    out_ptr,
    x_ptr,
    packed_ptr,
    scale_ptr,
    num_rows,
    out_features,
    num_tiles,
    tiles_per_split,
    x_stride,
    packed_stride,
    scale_stride,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """BLOCK_N outputs of BLOCK_M rows, from the inputs of one split. Given, on your `multiply_tile`.

    Program (j, s, i): outputs j * BLOCK_N and following, split s, rows i * BLOCK_M and following.

    There are num_tiles tiles in all, and split s has the tiles s * tiles_per_split and following, that many
    of them; the last splits may have fewer, or none. The sum goes to out_ptr, which is
    [splits, num_rows, out_features] without gaps: float32 where there are several splits, out itself where
    there is one.
    """
    output = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    row = (tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    in_outputs = output < out_features
    in_rows = row < num_rows
    first = tl.program_id(1) * tiles_per_split
    last = tl.minimum(first + tiles_per_split, num_tiles)

    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for tile in range(first, last):
        acc += multiply_tile(
            x_ptr, packed_ptr, scale_ptr, tile, row, output, in_rows, in_outputs,
            x_stride, packed_stride, scale_stride, GROUP, BLOCK_N, BLOCK_K,
        )  # fmt: skip

    split = tl.program_id(1).to(tl.int64)
    at = (split * num_rows + row[None, :]) * out_features + output[:, None]
    tl.store(out_ptr + at, acc, mask=in_rows[None, :] & in_outputs[:, None])


@triton.jit
def add_splits(out_ptr, part_ptr, size, num_splits, BLOCK: tl.constexpr):
    """The sums of all splits, added. Program i has numbers i * BLOCK to i * BLOCK + BLOCK - 1. Given."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(num_splits):
        total += tl.load(part_ptr + split * size + at, mask=at < size, other=0.0)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=at < size)


def compute_capability() -> int:
    """The GPU that Triton compiles for, as 80 or 90; 90 where there is none (the interpreter). Given."""
    try:
        return int(triton.runtime.driver.active.get_current_target().arch)
    except RuntimeError:
        return 90


def w4a16_gemm(x: Tensor, weight_packed: Tensor, weight_scale: Tensor) -> Tensor:
    """Start `w4a16_kernel`, then `add_splits` where the inputs were split. Given."""
    (num_rows, in_features), out_features = x.shape, len(weight_packed)
    group = in_features // weight_scale.shape[1]
    tensor_cores = x.dtype != torch.float32 and compute_capability() >= 80
    block_n = 64 if tensor_cores else 32  # larger ones spill where there are none
    block_m, block_k = 16, min(128, max(16, triton.next_power_of_2(group)))
    num_tiles = weight_scale.shape[1] * triton.cdiv(group, block_k)
    programs = triton.cdiv(out_features, block_n) * triton.cdiv(num_rows, block_m)
    splits = max(1, min(4, 128 // programs, num_tiles // 2))  # for about 128 multiprocessors
    out = x.new_empty(num_rows, out_features)
    parts = x.new_empty(splits, num_rows, out_features, dtype=torch.float32) if splits > 1 else out
    w4a16_kernel[triton.cdiv(out_features, block_n), splits, triton.cdiv(num_rows, block_m)](
        parts, x, weight_packed, weight_scale,
        num_rows, out_features, num_tiles, triton.cdiv(num_tiles, splits),
        x.stride(0), weight_packed.stride(0), weight_scale.stride(0),
        GROUP=group, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=4,
    )  # fmt: skip
    if splits > 1:
        add_splits[(triton.cdiv(out.numel(), 1024),)](out, parts, out.numel(), splits, BLOCK=1024)
    return out
