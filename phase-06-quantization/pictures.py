"""Draw the pictures of this phase's pages as SVG, from `noor.py` and the shipped model.

    python phase-06-quantization/pictures.py        # writes phase-06-quantization/pictures/*.svg

What they are drawn with is in `course/docs/drawing.py`.
"""

from __future__ import annotations

import math

import numpy as np
from noor import (
    GB,
    L4,
    Measured,
    down_inputs,
    grid,
    matrix,
    people,
    quality,
    step_ms,
    weight_bytes,
)
from rounding_pictures import draw_columns, draw_fp4, draw_smooth

from course.docs.drawing import Drawing, write_all
from mini_vllm.layers.quantization.float_formats import E4M3
from mini_vllm.layers.quantization.grid import choose_scales, round_to_nearest

INT4 = 4.125
"""Bits of a weight in 4 bits with a scale of 16 for 128 of them."""


def draw_card() -> Drawing:
    """Noor's memory: weights, what vLLM leaves alone, and the conversations that fit between."""
    left, right, high = 104, 620, 40
    unit = (right - left) / L4.memory
    d = Drawing("What Noor's card holds, with weights in 16, 8 and 4 bits", 250)
    for row, (name, bits, kv) in enumerate(
        (("16 bits", 16, 16), ("8 bits", 8, 16), ("4 bits", INT4, 16), ("4, cache 8", INT4, 8))
    ):
        y = 20 + row * 50
        held, room = weight_bytes(bits) * unit, 0.92 * L4.memory * unit
        d.text(left - 8, y + 26, name, "m", "end")
        d.box(left, y, held, high, "A")
        d.box(left + held, y, room - held - 1, high, "C")
        d.box(left + room, y, right - left - room, high, "none edge")
        d.text(left + held / 2, y + 25, f"{weight_bytes(bits) / GB:.1f} GB", "on m", "middle")
        d.text(left + (held + room) / 2, y + 25, people(bits, kv_bits=kv), "on m", "middle")
    d.text(left, 238, "blue: weights; green: people who fit; pale: not used by vLLM", "m")
    return d


def draw_grid() -> Drawing:
    """A row of the shipped model with an outlier, on a grid of four bits: one scale, then four."""
    weight = matrix(1, "k")
    place = int(np.abs(weight).max(axis=1).argmax())
    row = weight[place : place + 1]
    left, unit, middle, tall = 66, 4.3, 78, 60
    d = Drawing("A row of 128 weights on a grid of 16 numbers, with one scale and with four", 462)
    for top, share, words in ((34, "channel", "one scale"), (242, 32, "one scale per 32")):
        scales = choose_scales(row, grid(4, share))[0][0]
        d.text(left, top - 12, f"{words}: steps of " + ", ".join(f"{s:.3f}" for s in scales), "m")
        size = 128 // len(scales)
        for number, scale in enumerate(scales):
            x = left + number * size * unit
            for code in range(-8, 8):
                y = top + middle - code * scale * tall + 4
                d.path([(x, y), (x + size * unit - 3, y)], "thin")
        for j, value in enumerate(row[0]):
            scale = scales[j // size]
            stored = float(np.clip(np.rint(value / scale), -8, 7) * scale)
            x, y = left + j * unit, top + middle - value * tall + 4
            d.path([(x, y), (x, top + middle - stored * tall + 4)], "bold", 1)
            css = "B" if abs(value) > 1 else "A"
            d.parts.append(f'<circle cx="{x:.5g}" cy="{y:.5g}" r="2.2" class="{css}"/>')
        d.text(left - 10, top + middle + 8, "0", "s", "end")
        d.text(left - 10, top + middle - tall + 8, "1", "s", "end")
        d.text(left - 10, top + middle + tall + 8, "−1", "s", "end")
    d.text(left, 448, "dots: original weights; strokes: the distance to the nearest line", "m")
    return d


def draw_bits() -> Drawing:
    """Perplexity of the shipped model against bits per weight, near four: grids and methods."""
    left, right, top, bottom = 72, 600, 40, 280
    lowest, highest = 1.38, 1.47
    d = Drawing("Perplexity against bits per weight, rounded to the nearest and by a method", 352)

    def x(bits: float) -> float:
        return left + (bits - 3.9) / 1.2 * (right - left)

    def y(value: float) -> float:
        return bottom - (value - lowest) / (highest - lowest) * (bottom - top)

    def place(one: Measured) -> tuple[float, float]:
        return x(one.bits), y(one.perplexity)

    measured = quality()
    for value in (1.38, 1.4, 1.42, 1.44, 1.46):
        d.path([(left, y(value)), (right, y(value))], "thin")
        d.text(left - 8, y(value) + 5, f"{value:.2f}", "s", "end")
    d.text(12, 22, "perplexity", "m")
    for quarter in range(16, 21):
        d.text(x(quarter / 4), bottom + 20, f"{quarter / 4:g}", "s", "middle")
    d.text(right, bottom + 42, "bits per weight, scales included", "m", "end")
    level = y(measured["float32"].perplexity)
    d.path([(left, level), (right, level)], "dash", 1.5)
    d.text(right, level + 18, "float32, and nearly int8 and FP8", "m", "end")
    d.arrow(x(4), top + 22, x(4), top)
    d.text(x(4) + 10, top + 14, f"one scale: {measured['int4 tensor'].perplexity:.2f}", "A m")
    shares = {"channel": "row", "128": "128", "64": "64", "32": "32", "16": "16"}
    line = [measured[f"int4 {share}"] for share in shares]
    d.path([place(one) for one in line], "bold", 1.5)
    for one, words in zip(line, shares.values(), strict=True):
        px, py = place(one)
        d.dot(px, py, "A")
        d.text(px + 9, py - 6, words, "A m")
    for name, words, css, under in (
        ("mxfp4 32", "MXFP4", "B", -6),
        ("nvfp4 16", "", "B", 0),
        ("gptq-g128", "GPTQ 128", "D", 18),
        ("gptq-g32", "GPTQ 32", "D", 18),
        ("awq-g128", "", "D", 0),
        ("awq-g32", "AWQ 32", "D", 4),
    ):
        px, py = place(measured[name])
        d.dot(px, py, css)
        d.text(px + 9, py + under, words, f"{css} m")
    for name, words, css in (("awq-g128", "AWQ 128", "D"), ("nvfp4 16", "NVFP4", "B")):
        px, py = place(measured[name])
        d.text(px - 9, py + 5, words, f"{css} m", "end")
    at = float(left)
    for css, words in (("A", "int4, nearest"), ("B", "floats of 4 bits"), ("D", "calibrated")):
        d.box(at, 332, 12, 12, css)
        d.text(at + 18, 343, words, "m")
        at += 50 + 7.4 * len(words)
    return d


def draw_outlier() -> Drawing:
    """The largest input of the first layer's down_proj, token by token, and what a step of 8 bits is then."""
    rows = np.abs(down_inputs())
    left, cell, base, unit = 60, 6.0, 232, 1.35
    d = Drawing(
        "The largest number of each token, at the input of the first layer's down_proj", 318
    )
    for value in (50, 100):
        d.path(
            [(left, base - value * unit), (left + len(rows) * cell, base - value * unit)], "thin"
        )
        d.text(left - 8, base - value * unit + 5, value, "s", "end")
    for token, row in enumerate(rows):
        most = float(row.max())
        d.box(
            left + token * cell,
            base - most * unit,
            cell - 1.5,
            most * unit,
            "B" if token == 0 else "A",
            0,
        )
    d.text(left + 14, base - rows[0].max() * unit + 14, f"<bos>: {rows[0].max():.0f}", "B m")
    typical = float(np.median(rows.max(axis=1)))
    d.text(left + 150, base - 40, f"the others: mostly near {typical:.0f}", "A m")
    d.text(left, base + 22, "tokens of one sentence, in order", "m")
    d.text(
        left,
        base + 50,
        f"one scale for all: steps of {rows.max() / 127.5:.2f}; one per token: "
        f"mostly near {typical / 127:.2f}",
        "m",
    )
    d.text(left, base + 72, "median magnitude of all numbers after the first token: "
           f"{float(np.median(rows[1:])):.2f}", "m")  # fmt: skip
    return d


class Terms:
    """A line of cells and signs, written from left to right."""

    def __init__(self, d: Drawing, x: float, y: float) -> None:
        self.d, self.x, self.y = d, x, y

    def put(self, words: str, css: str, wide: int) -> None:
        self.d.cell(self.x, self.y, wide, 30, words.replace("-", "\u2212"), css)
        self.x += wide + 2

    def sign(self, words: str) -> None:
        self.d.text(self.x + 5, self.y + 21, words, "", "middle")
        self.x += 12


def draw_sum() -> Drawing:
    """Where a weight's scale stands in one output's sum: of the row, and of two neighbours."""
    row, inputs = np.array([[0.30, -0.13, 0.04, -0.25]], np.float32), (2, 1, 5, 3)
    d = Drawing("Where the scale of weights stands in the sum of one output", 184)
    left = 24
    for number, (size, words) in enumerate(
        (
            (4, "one scale for the row: 1 multiplication by a scale"),
            (2, "one scale for two neighbours: 2 multiplications"),
        )
    ):
        made = round_to_nearest(row, grid(4, size))
        line = Terms(d, left, 34.0 + number * 78)
        d.text(left, line.y - 10, words, "m")
        for start in range(0, 4, size):
            if start:
                line.sign("+")
            line.put(f"{made.scale[0, start // size]:.3f}", "B", 48)
            line.sign("·")
            line.sign("(")
            for j in range(start, start + size):
                if j > start:
                    line.sign("+")
                line.put(str(made.codes[0, j]), "A", 29)
                line.sign("·")
                line.put(str(inputs[j]), "none", 24)
            line.sign(")")
    d.text(left, 170, "orange: scales; blue: codes of weights; pale: inputs", "m")
    return d


def draw_codes() -> Drawing:
    """Both sides as codes: a token's scale stands outside of the sum, an input channel's inside."""
    row = np.array([[0.30, -0.13, 0.04]], np.float32)
    token, largest = np.array([2.0, 1, 60]), np.array([3.0, 2, 64])
    d = Drawing("Where the scale of inputs stands in the sum of one output, if both are codes", 262)
    left = 24
    made = round_to_nearest(row, grid(4, 3))
    weight_scale = f"{made.scale[0, 0]:.3f}"
    d.text(left, 20, "inputs " + ", ".join(f"{value:g}" for value in token), "m")
    for number, (scales, words) in enumerate(
        (
            (np.full(3, token.max() / 127), "one scale for the token: a sum of integers"),
            (largest / 127, "one scale per input channel: 3 scales inside the sum"),
        )
    ):
        codes = np.rint(token / scales).astype(int)
        line = Terms(d, left, 64.0 + number * 84)
        d.text(left, line.y - 10, words, "m")
        line.put(weight_scale, "B", 48)
        line.sign("·")
        if number == 0:
            line.put(f"{scales[0]:.3f}", "B", 48)
            line.sign("·")
        line.sign("(")
        for j in range(3):
            if j:
                line.sign("+")
            line.put(str(made.codes[0, j]), "A", 29)
            line.sign("·")
            line.put(str(codes[j]), "C", 36)
            if number:
                line.sign("·")
                line.put(f"{scales[j]:.3f}", "B", 48)
        line.sign(")")
    d.text(left, 222, "orange: scales; blue: codes of weights; green: codes of inputs.", "m")
    words = "The largest inputs of each channel over a text: "
    d.text(left, 246, words + ", ".join(f"{value:g}" for value in largest), "m")
    return d


def draw_floats() -> Drawing:
    """Half a step of int8 and of E4M3, as a share of the number."""
    left, right = 90, 610
    d = Drawing("How large half a step is, as a share of the number, in int8 and in E4M3", 180)
    top, bottom = 40, 134
    d.text(left, 18, "half a step, as a share of the number", "m")
    wide = (right - left) / 9
    for power in range(10):
        d.text(
            left + power * wide,
            bottom + 20,
            f"1/{2 ** (9 - power)}" if power < 9 else "1",
            "s",
            "middle",
        )
    for share in (0, 0.125, 0.25):
        y = bottom - share / 0.25 * (bottom - top)
        d.path([(left, y), (right, y)], "thin")
        d.text(left - 8, y + 5, f"{share:.1%}" if share else "0", "s", "end")
    fine = 2.0 ** (-np.arange(0, 9.01, 0.05)[::-1])
    int8 = 0.5 / 127.5 / fine
    d.path(
        [
            (left + (math.log2(v) + 9) * wide, bottom - min(s, 0.27) / 0.25 * (bottom - top))
            for v, s in zip(fine, int8, strict=True)
            if s < 0.27
        ],
        "to",
        2,
    )
    values = np.array(sorted({float(v) for v in E4M3.values if v > 0})) / E4M3.max
    values = values[values >= 2.0**-9]
    half = np.diff(values) / 2 / values[:-1]
    d.path(
        [
            (left + (math.log2(v) + 9) * wide, bottom - s / 0.25 * (bottom - top))
            for v, s in zip(values[:-1], half, strict=True)
        ],
        "bold",
        1.5,
    )
    d.text(left + 2.4 * wide, top + 12, "int8", "m")
    d.text(right, bottom - 32, "E4M3", "m", "end")
    d.text(right, 174, "the number, as a share of the largest", "m", "end")
    return d


def draw_pays() -> Drawing:
    """Milliseconds of a step on Noor's card against the tokens that it computes."""
    left, right, top, bottom = 66, 500, 30, 262
    d = Drawing("What the linears and the last matrix of a step take on Noor's card", 340)

    def x(rows: float) -> float:
        return left + math.log2(rows) / 11 * (right - left)

    def y(ms: float) -> float:
        return bottom - math.log2(ms / 10) / math.log2(32) * (bottom - top)

    for ms in (10, 20, 40, 80, 160, 320):
        d.path([(left, y(ms)), (right, y(ms))], "thin")
        d.text(left - 8, y(ms) + 5, ms, "s", "end")
    d.text(12, 18, "ms", "m")
    for power in range(12):
        d.text(x(2**power), bottom + 20, 2**power, "s", "middle")
    d.text(
        right,
        bottom + 42,
        "tokens in the step; at most 64 get a next token",
        "m",
        "end",
    )
    fine = [2 ** (step / 8) for step in range(89)]
    for bits, fast, css in ((16, False, "thin"), (INT4, False, "bold"), (8, True, "to")):
        points = []
        for rows in fine:
            ms = step_ms(round(rows), bits, fast, sampled=min(64, round(rows)))
            points.append((x(rows), y(ms)))
        d.path(points, "bold" if css != "to" else "to", 3 if css == "bold" else 2)
    alone, more = people(INT4), people(INT4, kv_bits=8)
    for rows in (alone, more):
        d.path([(x(rows), top), (x(rows), bottom)], "dash", 1.5)
    d.text(x(alone) - 8, top + 14, f"{alone} people, one token each", "m", "end")
    d.text(x(more) + 8, top + 14, f"{more}, cache 8", "m")
    last = 2048
    d.text(right + 8, y(step_ms(last, sampled=64)) + 5, "16 and 4 bits", "m")
    d.text(right + 8, y(step_ms(last, 8, True, sampled=64)) + 9, "8, both sides", "m")
    d.text(left + 6, y(step_ms(1)) - 8, "16 bits", "m")
    d.text(left + 6, y(step_ms(1, INT4)) - 8, "4 bits, weight-only", "m")
    d.text(left + 6, y(step_ms(1, 8, True)) - 8, "8 bits, weights and activations", "m")
    d.text(
        left, 334, "derived from the data sheet's bandwidth and operations; both axes double", "m"
    )
    return d


PICTURES = {
    "card": draw_card,
    "grid": draw_grid,
    "sum": draw_sum,
    "codes": draw_codes,
    "outlier": draw_outlier,
    "columns": draw_columns,
    "smooth": draw_smooth,
    "fp4": draw_fp4,
    "bits": draw_bits,
    "floats": draw_floats,
    "pays": draw_pays,
}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
