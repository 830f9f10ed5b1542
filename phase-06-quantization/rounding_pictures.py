"""The pictures of the guide's second half, how codes are chosen: `pictures.py` writes them."""

from __future__ import annotations

import math

import numpy as np
from rounding import FACTOR, INPUTS, PLANTED, WEIGHTS, gptq_steps, moved_by_gptq, smoothed

from course.docs.drawing import Drawing
from mini_vllm.layers.quantization.float_formats import E2M1, MXFP4_BLOCK, NVFP4_BLOCK


def draw_columns() -> Drawing:
    """GPTQ's steps: the example of the page in numbers, then a real row, each with what has moved."""
    d = Drawing("GPTQ rounds a column, and moves the columns that are left", 350)
    left, wide, high = 40, 74, 34
    rows = [WEIGHTS, *gptq_steps(WEIGHTS, INPUTS.T @ INPUTS)]
    for step, row in enumerate(rows):
        y = 16 + step * 44
        before = rows[max(step - 1, 0)]
        for j, value in enumerate(row):
            moved = j >= step and abs(value - before[j]) > 1e-9
            css = "A" if j < step else "B" if moved else "none"
            d.cell(left + j * wide, y, wide - 6, high, f"{value:.3g}", css)
        words = "before rounding"
        if step:
            words = f"column {step - 1}: {row[step - 1] - before[step - 1]:+.2f}"
            rest = (row - before)[step:]
            if np.any(abs(rest) > 1e-9):
                words += "; the rest: " + ", ".join(f"{v:+.2f}" for v in rest)
        d.text(left + 3 * wide + 10, y + 22, words.replace("-", "−"), "m")
    real = moved_by_gptq()
    unit, tall = 4.3, 26.0
    done, middle = 64, 278
    words = f"a row of the shipped model, {done} of 128 columns done: moves, in steps"
    d.text(left, 216, words, "m")
    for steps in (-1, 1):
        y = middle - steps * tall
        d.path([(left, y), (left + 128 * unit, y)], "thin")
        d.text(left - 8, y + 5, f"{steps:+d}".replace("-", "−"), "s", "end")
    for j, moved in enumerate(real[done - 1]):
        shown = min(abs(moved), 1.3) * tall
        top = middle - shown if moved > 0 else middle
        d.box(left + j * unit, top, unit - 1, shown, "A" if j < done else "B", 0)
    words = "blue: rounded, fixed; orange: not rounded yet, moved to make up for errors"
    d.text(left, 338, words, "m")
    return d


def draw_smooth() -> Drawing:
    """The largest input and weight of each channel, before and after, with one channel planted large."""
    d = Drawing("SmoothQuant: the largest input and weight of each channel, before and after", 344)
    before, after = smoothed()
    every = np.concatenate([each for one in (before, after) for each in (one.inputs, one.columns)])
    low, high = math.floor(math.log2(every.min())), math.ceil(math.log2(every.max()))
    top, bottom, unit = 44, 256, 2.1

    def y(value: float) -> float:
        return bottom - (math.log2(value) - low) / (high - low) * (bottom - top)

    for panel, (words, one) in enumerate((("before", before), ("after, α = 0.5", after))):
        left = 56 + panel * 296
        right = left + len(one.inputs) * unit
        d.text(left, 24, words, "m")
        for power in range(low, high + 1, 2):
            d.path([(left, y(2.0**power)), (right, y(2.0**power))], "thin")
            if panel == 0:
                label = f"{2**power}" if power >= 0 else f"1/{2**-power}"
                d.text(left - 8, y(2.0**power) + 5, label, "s", "end")
        for values, css in ((one.columns, "C"), (one.inputs, "A")):
            for j, value in enumerate(values):
                size = 4.5 if j == PLANTED else 2.2
                shape = f'cx="{left + j * unit:.5g}" cy="{y(value):.5g}" r="{size}"'
                d.parts.append(f'<circle {shape} class="{css}"/>')
        planted = one.inputs[PLANTED]
        d.text(left + PLANTED * unit + 9, y(planted) + 5, f"{planted:.3g}", "A m")
    d.text(56, 284, "128 channels of layer 0's query, key and value", "m")
    words = "blue: largest input; green: largest weight (afterwards both are equal)"
    d.text(56, 306, words, "m")
    d.text(56, 328, f"large dot: the channel whose inputs were made {FACTOR} times as large", "m")
    return d


def draw_fp4() -> Drawing:
    """The numbers that four bits can be, whole ones and E2M1, and how blocks of these lie in memory."""
    left, right = 90, 610
    d = Drawing("The sixteen values of int4 and of E2M1; a block of NVFP4 and one of MXFP4", 330)
    unit = (right - left) / 16
    zero = left + 8 * unit
    rows = (
        ("int4", [float(code) for code in range(-8, 8)], "A", 48),
        ("E2M1", sorted({float(value) for value in E2M1.values}), "B", 108),
    )
    for name, values, css, y in rows:
        scale = 7 / max(values)  # the largest at the same place
        d.text(left - 16, y + 5, name, "m", "end")
        d.path([(left, y), (right, y)], "thin")
        for value in values:
            x = zero + value * scale * unit
            d.dot(x, y, css)
            if value >= 0 and value % 1 == 0:  # there is no room for 0.5 and 1.5
                d.text(x, y + 24, f"{value:g}", "s", "middle")
    d.text(left, 22, "drawn so that the largest values coincide", "s")
    wide = 13.5
    for top, name, size, scale_words, more in (
        (176, "NVFP4", NVFP4_BLOCK, "E4M3", "; and one float32 per tensor"),
        (252, "MXFP4", MXFP4_BLOCK, "2ⁿ", ""),
    ):
        d.text(left - 16, top + 20, name, "m", "end")
        for place in range(size):
            d.box(left + place * wide, top, wide - 1.5, 30, "B")
        d.box(left + size * wide + 4, top, 2 * wide + 24, 30, "D")
        d.text(left + size * wide + 16 + wide, top + 20, scale_words, "on m", "middle")
        bits = size * 4 + 8
        d.text(
            left, top + 50, f"{size} × 4 + 8 bits = {bits}: "
            f"{bits / size:g} each{more}", "m"
        )  # fmt: skip
    return d
