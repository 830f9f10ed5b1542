"""A correct `add_lora` with few programs: each finds its tile among all slots' by counting."""

import math

import torch
import triton
import triton.language as tl


@triton.jit
def find(tile, many_ptr, begin_ptr, slot_ptr, groups, ROWS: tl.constexpr, GROUPS: tl.constexpr):
    """Slot, first entry and number of rows of the tile; -1 for the slot where there are fewer tiles."""
    g = tl.arange(0, GROUPS)
    s = tl.load(slot_ptr + g, mask=g < groups, other=-1)
    many = tl.load(many_ptr + g, mask=s >= 0, other=0)
    tiles = tl.cdiv(many, ROWS)
    ends = tl.cumsum(tiles, 0)
    mine = (tile >= ends - tiles) & (tile < ends)
    done = (tile - ends + tiles) * ROWS
    begin = tl.load(begin_ptr + g, mask=mine, other=0)
    entry = tl.sum(tl.where(mine, begin + done, 0), 0)
    left = tl.sum(tl.where(mine, many - done, 0), 0)
    return tl.sum(tl.where(mine, s + 1, 0), 0) - 1, entry, left


@triton.jit
def squeeze(
    mid_ptr, x_ptr, a_ptr, order_ptr, many_ptr, begin_ptr, slot_ptr, groups, n, rank, width, x_row,
    ROWS: tl.constexpr, RANKS: tl.constexpr, STEP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    slot, entry, left = find(tl.program_id(0), many_ptr, begin_ptr, slot_ptr, groups, ROWS, GROUPS)
    if slot >= 0:
        s = tl.program_id(1)
        lanes, r, k = tl.arange(0, ROWS), tl.arange(0, RANKS), tl.arange(0, STEP)
        row = tl.load(order_ptr + entry + lanes, mask=lanes < left, other=0)
        z = tl.zeros([ROWS, RANKS], tl.float32)
        a_ptr += (s * (groups - 1) + slot) * rank * width
        for at in range(0, width, STEP):
            live = at + k < width
            x = tl.load(
                x_ptr + row[:, None] * x_row + at + k[None, :],
                mask=(lanes < left)[:, None] & live[None, :],
                other=0.0,
            )
            a = tl.load(
                a_ptr + r[None, :] * width + at + k[:, None],
                mask=(r < rank)[None, :] & live[:, None],
                other=0.0,
            )
            z = tl.dot(x, a, z, input_precision="ieee")
        tl.store(
            mid_ptr + (s * n + row[:, None]) * rank + r[None, :],
            z,
            mask=(lanes < left)[:, None] & (r < rank)[None, :],
        )


@triton.jit
def stretch(
    out_ptr, mid_ptr, b_ptr, edge_ptr, order_ptr, many_ptr, begin_ptr, slot_ptr, groups, n, rank, total,
    EVEN: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, OUT: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    slot, entry, left = find(tl.program_id(0), many_ptr, begin_ptr, slot_ptr, groups, ROWS, GROUPS)
    if slot >= 0:
        s = tl.program_id(1)
        lanes, r = tl.arange(0, ROWS), tl.arange(0, RANKS)
        row = tl.load(order_ptr + entry + lanes, mask=lanes < left, other=0)
        first = tl.multiple_of(tl.load(edge_ptr + s), EVEN)
        end = tl.multiple_of(tl.load(edge_ptr + s + 1), EVEN)
        z = tl.load(
            mid_ptr + (s * n + row[:, None]) * rank + r[None, :],
            mask=(lanes < left)[:, None] & (r < rank)[None, :],
            other=0.0,
        )
        for at in range(first, end, OUT):
            j = tl.multiple_of(at, EVEN) + tl.arange(0, OUT)
            both = (lanes < left)[:, None] & (j < end)[None, :]
            b = tl.load(
                b_ptr + (slot * total + j[None, :]) * rank + r[:, None],
                mask=(r < rank)[:, None] & (j < end)[None, :],
                other=0.0,
            )
            y = tl.load(out_ptr + row[:, None] * total + j[None, :], mask=both, other=0.0)
            y = tl.dot(z.to(b.dtype), b, input_precision="ieee") + y
            tl.store(
                out_ptr + row[:, None] * total + j[None, :],
                y.to(out_ptr.dtype.element_ty),
                mask=both,
            )


@triton.jit
def begin_with(out_ptr, y_ptr, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(y_ptr + at, mask=at < size, other=0.0), mask=at < size)


def add_lora(y, x, lora_a, lora_b, slice_starts, widths, sorted_rows, counts, starts, slots):
    slices, _, rank, width = lora_a.shape
    (n, total), groups = y.shape, len(slots)
    # Each group's last tile may be short: so many at most, whatever the rows' slots are.
    tiles = triton.cdiv(n, 16) + min(groups, n)
    ranks, room = max(16, triton.next_power_of_2(rank)), triton.next_power_of_2(groups)
    out, z = torch.empty_like(y), y.new_empty(slices, n, rank, dtype=torch.float32)
    begin_with[(triton.cdiv(n * total, 1024),)](out, y, n * total, BLOCK=1024)
    lists = sorted_rows, counts, starts, slots, groups, n, rank
    squeeze[(tiles, slices)](
        z, x, lora_a, *lists, width, x.stride(0), ROWS=16, RANKS=ranks, STEP=64, GROUPS=room,
    )  # fmt: skip
    stretch[(tiles, slices)](
        out, z, lora_b, slice_starts, *lists, total,
        EVEN=math.gcd(16, *widths), ROWS=16, RANKS=ranks, OUT=64, GROUPS=room,
    )  # fmt: skip
    return out
