"""`x @ weight.T` with weights of 4 or 8 bits and activations of 16 or 32, in Triton.

Does what vLLM's kernels for weight-only checkpoints do, Marlin and Machete first among them
(`vllm/model_executor/kernels/linear/mixed_precision/marlin.py:30 MarlinLinearKernel`). The one at the pin
that is Triton too, `vllm/model_executor/layers/quantization/awq_triton.py:109 awq_gemm_kernel`, stands in for
them where they are missing.

The weights lie as compressed-tensors writes them: 32-bit words, eight codes of 4 bits each (four of 8)
along the input, little end first. A code is the weight plus 8 (plus 128; or plus what its group says), and
each group of inputs has a scale. In decode such a product waits for the weights, so they should travel
packed, and once:

- **Codes become float16 in the registers that they were loaded into.** A small whole number put where float16
  has its fraction, with nothing in its exponent, is that number times 2 ** -24. So `word >> 4 * i &
  0x000F000F` holds codes i and i + 4, two finished float16 in 32 bits. One subtraction takes 8 * 2 ** -24
  from both. No number is converted, which would cost more than all the rest, and nothing goes through
  memory. The factor 2 ** 24 goes into the scale.
- **The codes come out as 0 4 1 5 2 6 3 7,** and the sum over them does not care, if x takes the same order. x
  is small, so it is the one that is turned.
- **The scale is applied to sums.** A trip of the loop stays within a group, so 128 products share one
  multiplication, in float32.
- **The weight is the left operand,** its rows the matrix unit's 64, the batch its columns, of which a Hopper
  takes as few as 8. And Hopper's unit reads a left operand from registers.
- **The inputs are split across programs** where the outputs alone make too few of them. Each split leaves
  sums in float32, and `add_splits` adds them.

Left out, and Marlin has it: weights laid out anew for the kernel, which spares the way through shared
memory into the unit's order; persistent programs; and groups smaller than a trip, which cost a trip each
here. vLLM's kernels round each weight times its scale to 16 bits; here only x is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_vllm.gpu.kernels.paged_decode import compute_capability, multiprocessors

BITS = (4, 8)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@triton.jit
def wna16_kernel(
    out_ptr,  # [num_rows, out_features], like x; where SPLIT is on float32 [splits, num_rows, out_features]
    x_ptr,  # [num_rows, in_features]
    packed_ptr,  # int32 [out_features, in_features * BITS / 32]
    scale_ptr,  # [out_features, in_features / GROUP]
    zero_ptr,  # uint8 [out_features, in_features / GROUP]; read where ZERO is on
    num_rows,
    out_features,
    num_tiles,  # trips of the loop over all inputs
    tiles_per_split,
    x_stride,  # strides count elements; the last axis of x and of the words has stride 1
    packed_stride,
    scale_stride_out,
    scale_stride_group,
    zero_stride_out,
    zero_stride_group,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,  # inputs that share a scale; a multiple of 32 / BITS
    BLOCK_M: tl.constexpr,  # rows of x; a power of two, at least 16
    BLOCK_N: tl.constexpr,  # outputs; likewise
    BLOCK_K: tl.constexpr,  # inputs a trip; likewise
    ZERO: tl.constexpr,  # has each group a code of its own that stands for 0?
    SPLIT: tl.constexpr,  # do several programs share the inputs?
):
    """BLOCK_N outputs of BLOCK_M rows, from the inputs of one split.

    Grid: (blocks of outputs, splits, blocks of rows).
    """
    CODES: tl.constexpr = 32 // BITS  # in a word
    HALF: tl.constexpr = CODES // 2
    MASK: tl.constexpr = ((1 << BITS) - 1) * 0x00010001  # code i and code i + HALF
    TINY: tl.constexpr = 2.0**-24  # float16 with the bits of the whole number 1
    TILES: tl.constexpr = (GROUP + BLOCK_K - 1) // BLOCK_K  # trips a group

    output = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    row = (tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    in_outputs, in_rows = output < out_features, row < num_rows
    place, word = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // CODES)
    shift = tl.arange(0, HALF) * BITS
    first = tl.program_id(1) * tiles_per_split

    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for tile in range(first, tl.minimum(first + tiles_per_split, num_tiles)):
        group = tile // TILES
        start = group * GROUP + tile % TILES * BLOCK_K
        in_x, in_packed = in_rows[:, None], in_outputs[:, None]
        if GROUP % BLOCK_K != 0:  # the last trip of a group would run into the next one
            left = GROUP - tile % TILES * BLOCK_K
            in_x = in_x & (place < left)[None, :]
            in_packed = in_packed & (word * CODES < left)[None, :]
        packed_at = output[:, None] * packed_stride + (start // CODES + word)[None, :]
        packed = tl.load(packed_ptr + packed_at, mask=in_packed, other=0)
        x = tl.load(
            x_ptr + row[:, None] * x_stride + (start + place)[None, :], mask=in_x, other=0.0
        )
        scale_at = output * scale_stride_out + group * scale_stride_group
        scale = tl.load(scale_ptr + scale_at, mask=in_outputs, other=0.0)

        pairs = (packed[:, :, None] >> shift[None, None, :]) & MASK
        low = pairs.to(tl.int16).to(tl.float16, bitcast=True)
        high = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True)
        weight = tl.join(low, high)
        if ZERO:
            zero_at = output * zero_stride_out + group * zero_stride_group
            zero = tl.load(zero_ptr + zero_at, mask=in_outputs, other=0)
            weight -= zero.to(tl.int16).to(tl.float16, bitcast=True)[:, None, None, None]
        else:
            weight -= (1 << (BITS - 1)) * TINY
        weight = tl.reshape(weight, [BLOCK_N, BLOCK_K]).to(x.dtype)
        turned = tl.permute(tl.reshape(x, [BLOCK_M, BLOCK_K // CODES, 2, HALF]), (0, 1, 3, 2))
        turned = tl.reshape(turned, [BLOCK_M, BLOCK_K])
        # "ieee": float32 is multiplied as float32, not rounded to tf32. 16 bits do not care.
        products = tl.dot(weight, tl.trans(turned), input_precision="ieee")
        acc += products * (scale.to(tl.float32) * (1 / TINY))[:, None]

    at = row[None, :] * out_features + output[:, None]
    if SPLIT:
        at += tl.program_id(1).to(tl.int64) * num_rows * out_features
    in_out = in_rows[None, :] & in_outputs[:, None]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=in_out)


@triton.jit
def add_splits(out_ptr, part_ptr, size, num_splits, BLOCK: tl.constexpr):
    """The sums of all splits, added in their order. `size` numbers; grid: (blocks of BLOCK of them,)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(num_splits):
        total += tl.load(part_ptr + at, mask=inside, other=0.0)
        part_ptr += size
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Plan:
    """How a call is cut into programs.

    Attributes:
        block_m, block_n, block_k: rows, outputs and inputs that a program takes at once; powers of two, at
            least 16.
        splits: programs that share the inputs of a block of outputs. With 1 nothing is added afterwards.
        num_warps: groups of 32 threads that share a program.
        num_stages: how far loads run ahead.
    """

    block_m: int
    block_n: int
    block_k: int
    splits: int
    num_warps: int
    num_stages: int


def plan_wna16(
    num_rows: int,
    out_features: int,
    in_features: int,
    group_size: int,
    element_size: int = 2,
    capability: int = 90,
    num_sms: int = 132,
) -> Plan:
    """A plan for a shape and a GPU; the defaults describe an H100.

    A program of 128 outputs reads a row of x for 64 times as many bytes of 4-bit weights, so with one row x
    costs 3 % more bytes. Splits are made until every multiprocessor has a program, but not more than four:
    each writes and reads a float32 an output and row, which with one row and 4,096 inputs is 0.4 % more
    bytes a split. A program then keeps four tiles of 8 KiB under way while it computes a fifth.

    Args:
        element_size: bytes of a number of x.
        capability: 75, 80, 90, 100 … as Triton counts them. Before 80, and in float32, Triton multiplies
            without tensor cores, so tiles are smaller: larger ones spill.
        num_sms: multiprocessors of the GPU.
    """
    smaller = capability < 80 or element_size == 4
    block_n = 32 if smaller else 128
    block_k = min(128, max(16, triton.next_power_of_2(group_size)))
    if smaller or num_rows <= 16:
        block_m, stages = 16, 2 if smaller else 5
    else:
        block_m, stages = (32, 4) if num_rows <= 32 else (64, 3)
    programs = triton.cdiv(out_features, block_n) * triton.cdiv(num_rows, block_m)
    tiles = in_features // group_size * triton.cdiv(group_size, block_k)
    splits = max(1, min(4, num_sms // programs, tiles // 4))
    return Plan(block_m, block_n, block_k, splits, 4 if smaller else 8, stages)


def check_inputs(
    x: Tensor, weight_packed: Tensor, weight_scale: Tensor, bits: int, zero_point: Tensor | None
) -> None:
    """Shapes, dtypes and strides; ValueError with the value that breaks the rule. Reads no tensor's data."""
    if bits not in BITS:
        raise ValueError(f"bits is 4 or 8, got {bits}")
    if x.ndim != 2 or weight_packed.ndim != 2 or weight_scale.ndim != 2:
        raise ValueError(
            "x is [num_rows, in_features], weight_packed [out_features, in_features * bits / 32] and "
            f"weight_scale [out_features, groups], got {[*x.shape]}, {[*weight_packed.shape]}, "
            f"{[*weight_scale.shape]}"
        )
    if x.dtype not in DTYPES or not weight_scale.is_floating_point():
        raise ValueError(
            f"x is float16, bfloat16 or float32 and weight_scale floating, got {x.dtype} and "
            f"{weight_scale.dtype}"
        )
    if weight_packed.dtype != torch.int32:
        raise ValueError(f"weight_packed is int32, got {weight_packed.dtype}")
    (_, in_features), (out_features, words) = x.shape, weight_packed.shape
    codes = 32 // bits
    if words * codes != in_features:
        raise ValueError(
            f"{words} words of {codes} codes are {words * codes} inputs, and x has {in_features}"
        )
    groups = weight_scale.shape[1]
    if weight_scale.shape[0] != out_features:
        raise ValueError(
            f"weight_packed has {out_features} outputs, and weight_scale {weight_scale.shape[0]}"
        )
    if not groups or in_features % groups or in_features // groups % codes:
        raise ValueError(
            f"{in_features} inputs in {groups} groups: a group is a multiple of the {codes} codes of a word"
        )
    if zero_point is not None and (zero_point.shape, zero_point.dtype) != (
        weight_scale.shape, torch.uint8,
    ):  # fmt: skip
        raise ValueError(
            f"zero_point is {[*weight_scale.shape]} of uint8, like weight_scale, got "
            f"{[*zero_point.shape]} of {zero_point.dtype}"
        )
    for name, tensor in {"x": x, "weight_packed": weight_packed}.items():
        if tensor.stride(1) != 1 and tensor.shape[1] > 1:
            raise ValueError(f"the last axis of {name} has stride 1, got {tensor.stride(1)}")


def wna16_gemm(
    x: Tensor,
    weight_packed: Tensor,
    weight_scale: Tensor,
    bits: int = 4,
    *,
    zero_point: Tensor | None = None,
    plan: Plan | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`x @ weight.T`, where `weight[o, i] = (code[o, i] - zero_point[o, g]) * weight_scale[o, g]`.

    g is the group of i.

    Args:
        x: `[num_rows, in_features]`, float16, bfloat16 or float32.
        weight_packed: int32 `[out_features, in_features * bits / 32]`, the codes along the input, little end
            first.
        weight_scale: `[out_features, groups]`, floating, of any strides; a group is `in_features / groups`
            inputs. Outputs side by side in memory load best.
        bits: 4 or 8.
        zero_point: uint8 `[out_features, groups]`, of any strides; None: `2 ** (bits - 1)` everywhere.
        plan: how to cut the work; None: `plan_wna16`.
        out: where the result goes, without gaps; None: a new tensor.

    Returns:
        `[num_rows, out_features]` in x's dtype: `out`, where it was given.

    Raises:
        ValueError: shapes, dtypes or strides are others.
    """
    check_inputs(x, weight_packed, weight_scale, bits, zero_point)
    (num_rows, in_features), out_features = x.shape, len(weight_packed)
    group_size = in_features // weight_scale.shape[1]
    shape = (num_rows, out_features)
    if out is None:
        out = torch.empty(shape, dtype=x.dtype, device=x.device)
    if (out.shape, out.dtype, out.is_contiguous()) != (shape, x.dtype, True):
        raise ValueError(
            f"out is {[*shape]} of {x.dtype} without gaps, got {[*out.shape]} of {out.dtype}"
        )
    if not out.numel():
        return out
    if plan is None:
        plan = plan_wna16(
            num_rows, out_features, in_features, group_size, x.element_size(),
            compute_capability(), multiprocessors(x),
        )  # fmt: skip
    num_tiles = weight_scale.shape[1] * triton.cdiv(group_size, plan.block_k)
    grid = triton.cdiv(out_features, plan.block_n), plan.splits, triton.cdiv(num_rows, plan.block_m)
    target = out
    if plan.splits > 1:
        target = torch.empty((plan.splits, *shape), dtype=torch.float32, device=x.device)
    zeros = (0, 0) if zero_point is None else zero_point.stride()
    wna16_kernel[grid](
        target, x, weight_packed, weight_scale, zero_point,
        num_rows, out_features, num_tiles, triton.cdiv(num_tiles, plan.splits),
        x.stride(0), weight_packed.stride(0), *weight_scale.stride(), *zeros,
        BITS=bits, GROUP=group_size,
        BLOCK_M=plan.block_m, BLOCK_N=plan.block_n, BLOCK_K=plan.block_k,
        ZERO=zero_point is not None, SPLIT=plan.splits > 1,
        num_warps=plan.num_warps, num_stages=plan.num_stages,
    )  # fmt: skip
    if plan.splits > 1:
        block = 1024
        add_splits[(triton.cdiv(out.numel(), block),)](
            out, target, out.numel(), plan.splits, BLOCK=block
        )
    return out


def w4a16_gemm(x: Tensor, weight_packed: Tensor, weight_scale: Tensor) -> Tensor:
    """`wna16_gemm` with 4 bits, as the kernel bench's problem `w4a16` calls it."""
    return wna16_gemm(x, weight_packed, weight_scale, 4)
