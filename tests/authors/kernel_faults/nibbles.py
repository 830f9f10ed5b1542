"""A correct W4A16 kernel: rows on the left, no splits, a loop in a loop."""

import torch
import triton
import triton.language as tl


@triton.jit
def nibble_product(
    x_ptr, words_ptr, scales_ptr, y_ptr, rows, columns, groups, x_row, words_row,
    GROUP: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real_column = column < columns
    real_row = row < rows
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for group in range(groups):
        scales = tl.load(scales_ptr + column * groups + group, mask=real_column, other=0.0)
        for begin in range(0, GROUP, TILE):
            inner = begin + tl.arange(0, TILE)
            eight = begin // 8 + tl.arange(0, TILE // 8)
            words_at = (
                column[:, None].to(tl.int64) * words_row + (group * (GROUP // 8) + eight)[None, :]
            )
            live = real_column[:, None] & (eight < GROUP // 8)[None, :]
            words = tl.load(words_ptr + words_at, mask=live, other=0)
            x_at = row[:, None].to(tl.int64) * x_row + (group * GROUP + inner)[None, :]
            x = tl.load(x_ptr + x_at, mask=real_row[:, None] & (inner < GROUP)[None, :], other=0.0)
            nibbles = (words[:, :, None] >> (4 * tl.arange(0, 8))[None, None, :]) & 0xF
            numbers = tl.reshape(nibbles, [COLUMNS, TILE]) - 8
            weights = numbers.to(x.dtype)
            sums = tl.dot(x, tl.trans(weights), input_precision="ieee")
            total += sums * scales[None, :]
    y_at = row[:, None] * columns + column[None, :]
    tl.store(
        y_ptr + y_at,
        total.to(y_ptr.dtype.element_ty),
        mask=real_row[:, None] & real_column[None, :],
    )


def w4a16_gemm(x, weight_packed, weight_scale):
    rows, inputs = x.shape
    columns, groups = weight_scale.shape
    y = torch.empty(rows, columns, dtype=x.dtype)
    tile = max(16, min(128, triton.next_power_of_2(inputs // groups)))
    grid = triton.cdiv(columns, 64), triton.cdiv(rows, 16)
    nibble_product[grid](
        x, weight_packed, weight_scale, y, rows, columns, groups, x.stride(0), weight_packed.stride(0),
        GROUP=inputs // groups, TILE=tile, ROWS=16, COLUMNS=64, num_warps=8,
    )  # fmt: skip
    return y
