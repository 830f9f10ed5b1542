"""A correct W4A16 kernel: as many programs as processors, tile after tile, the words on the left."""

import torch
import triton
import triton.language as tl


@triton.jit
def shares_nibbles(
    y, x, words, scales, rows, outputs, groups, x_row, words_row,
    GROUP: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    down = tl.cdiv(rows, ROWS)
    for tile in range(tl.program_id(0), tl.cdiv(outputs, OUTPUTS) * down, tl.num_programs(0)):
        output = (tile // down * OUTPUTS + tl.arange(0, OUTPUTS)).to(tl.int64)
        row = (tile % down * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        total = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for group in range(groups):
            scale = tl.load(scales + output * groups + group, mask=output < outputs, other=0.0)
            for begin in tl.static_range(0, GROUP, TILE):
                inner = begin + tl.arange(0, TILE)
                eight = begin // 8 + tl.arange(0, TILE // 8)
                packed = tl.load(
                    words + output[:, None] * words_row + (group * (GROUP // 8) + eight)[None, :],
                    mask=(output < outputs)[:, None] & (eight < GROUP // 8)[None, :],
                    other=0,
                )
                a = tl.load(
                    x + row[None, :] * x_row + (group * GROUP + inner)[:, None],
                    mask=(row < rows)[None, :] & (inner < GROUP)[:, None],
                    other=0.0,
                )
                codes = packed[:, :, None] >> (4 * tl.arange(0, 8))[None, None, :]
                weight = (tl.reshape(codes & 15, [OUTPUTS, TILE]) - 8).to(a.dtype)
                total += tl.dot(weight, a, input_precision="ieee") * scale.to(tl.float32)[:, None]
        tl.store(
            y + row[None, :] * outputs + output[:, None],
            total.to(y.dtype.element_ty),
            mask=(row < rows)[None, :] & (output < outputs)[:, None],
        )


def w4a16_gemm(x, weight_packed, weight_scale):
    rows, inputs = x.shape
    outputs, groups = weight_scale.shape
    y = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    group = inputs // groups
    tile = max(16, min(64, triton.next_power_of_2(group)))
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    tiles = triton.cdiv(outputs, 64) * triton.cdiv(rows, 16)
    shares_nibbles[(min(processors, tiles),)](
        y, x, weight_packed, weight_scale, rows, outputs, groups, x.stride(0),
        weight_packed.stride(0), GROUP=group, TILE=tile, ROWS=16, OUTPUTS=64, num_warps=4,
    )  # fmt: skip
    return y
