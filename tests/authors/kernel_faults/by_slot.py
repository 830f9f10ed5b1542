"""A correct `add_lora` as vLLM deals it out: a program for each tile of a slot's rows and each slice."""

import math

import torch
import triton
import triton.language as tl


@triton.jit
def down(
    mid_ptr, x_ptr, a_ptr, order_ptr, many_ptr, begin_ptr, slot_ptr, n, held, rank, width, x_row,
    ROWS: tl.constexpr, RANKS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    part, g = tl.program_id(1), tl.program_id(2)
    slot = tl.load(slot_ptr + g)
    if slot == -1:
        return
    many = tl.load(many_ptr + g)
    left = many - tl.program_id(0) * ROWS
    if left <= 0:
        return
    i = tl.arange(0, ROWS)
    ok = i < left
    order = order_ptr + tl.load(begin_ptr + g) + tl.program_id(0) * ROWS
    row = tl.load(order + i, mask=ok, other=0)
    r, k = tl.arange(0, RANKS), tl.arange(0, STEP)
    fits = r < rank
    acc = tl.zeros([ROWS, RANKS], tl.float32)
    for done in range(0, width, STEP):
        more = done + k < width
        x = tl.load(
            x_ptr + row[:, None] * x_row + (done + k)[None, :],
            mask=ok[:, None] & more[None, :],
            other=0.0,
        )
        at = (part * held + slot) * rank * width + r[None, :] * width + (done + k)[:, None]
        a = tl.load(a_ptr + at, mask=fits[None, :] & more[:, None], other=0.0)
        acc = tl.dot(x, a, acc, input_precision="ieee")
    low_at = mid_ptr + (part * n + row)[:, None] * rank + r[None, :]
    tl.store(low_at, acc, mask=ok[:, None] & fits[None, :])


@triton.jit
def up(
    out_ptr, mid_ptr, b_ptr, edge_ptr, order_ptr, many_ptr, begin_ptr, slot_ptr, n, rank, total,
    EVEN: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    cut, g = tl.program_id(1), tl.program_id(2)
    slot = tl.load(slot_ptr + g)
    if slot == -1:
        return
    left = tl.load(many_ptr + g) - (cut % tl.cdiv(n, ROWS)) * ROWS
    if left <= 0:
        return
    part = cut // tl.cdiv(n, ROWS)
    low_edge = tl.multiple_of(tl.load(edge_ptr + part), EVEN)
    high_edge = tl.multiple_of(tl.load(edge_ptr + part + 1), EVEN)
    col = low_edge + tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    if low_edge + tl.program_id(0) * COLUMNS >= high_edge:
        return
    i = tl.arange(0, ROWS)
    ok = i < left
    order = order_ptr + tl.load(begin_ptr + g) + (cut % tl.cdiv(n, ROWS)) * ROWS
    row = tl.load(order + i, mask=ok, other=0)
    r = tl.arange(0, RANKS)
    fits, here = r < rank, col < high_edge
    low = tl.load(
        mid_ptr + (part * n + row)[:, None] * rank + r[None, :],
        mask=ok[:, None] & fits[None, :],
        other=0.0,
    )
    b = tl.load(
        b_ptr + (slot * total + col)[None, :] * rank + r[:, None],
        mask=fits[:, None] & here[None, :],
        other=0.0,
    )
    out_at = out_ptr + row[:, None] * total + col[None, :]
    base = tl.load(out_at, mask=ok[:, None] & here[None, :], other=0.0).to(tl.float32)
    base = tl.dot(low.to(b.dtype), b, base, input_precision="ieee")
    tl.store(out_at, base.to(out_ptr.dtype.element_ty), mask=ok[:, None] & here[None, :])


@triton.jit
def lay_down(out_ptr, y_ptr, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(y_ptr + at, mask=at < size, other=0.0), mask=at < size)


def add_lora(y, x, lora_a, lora_b, slice_starts, widths, sorted_rows, counts, starts, slots):
    parts, held, rank, width = lora_a.shape
    n, total = y.shape
    tiles, ranks = triton.cdiv(n, 16), max(16, triton.next_power_of_2(rank))
    out, low = torch.empty_like(y), y.new_empty(parts, n, rank, dtype=torch.float32)
    lay_down[(triton.cdiv(n * total, 2048),)](out, y, n * total, BLOCK=2048)
    down[(tiles, parts, len(slots))](
        low, x, lora_a, sorted_rows, counts, starts, slots, n, held, rank, width, x.stride(0),
        ROWS=16, RANKS=ranks, STEP=64,
    )  # fmt: skip
    up[(triton.cdiv(max(widths), 64), tiles * parts, len(slots))](
        out, low, lora_b, slice_starts, sorted_rows, counts, starts, slots, n, rank, total,
        EVEN=math.gcd(16, *widths), ROWS=16, RANKS=ranks, COLUMNS=64,
    )  # fmt: skip
    return out
