"""Draw the pictures of this phase's guide from `long_chat.py` and a run of the engine, as SVG.

    python phase-04-attention-backends/pictures.py        # writes phase-04-attention-backends/pictures/*.svg

What they are drawn with is in `course/docs/drawing.py`.
"""

from __future__ import annotations

import math

import numpy as np
from long_chat import (
    A100,
    DEEPSEEK,
    MIB,
    NO_GROUPS,
    SMS,
    block_q,
    flops,
    intensity,
    least_bytes,
    prefix_bytes,
    programs,
    score_bytes,
    tiles,
    together,
)

from course.docs.drawing import Drawing, write_all

EMPTY = "none thin"
CONTEXT = 4096


def draw_roofline() -> Drawing:
    """Operations per second against operations per byte, for Ida, for Jon, and for others like them."""
    left, right, top, bottom = 84, 616, 40, 292
    lowest, highest = 0.5, 4096.0  # operations per byte

    def x(of: float) -> float:
        share = math.log(of / lowest) / math.log(highest / lowest)
        return left + share * (right - left)

    def y(teraflops: float) -> float:
        return bottom - math.log10(teraflops) / 3 * (bottom - top)

    def reach(of: float) -> float:
        return min(A100.flops, of * A100.bandwidth) / 1e12

    d = Drawing("The roofline of an A100, and where attention lies under it", 366)
    for teraflops in (1, 10, 100, 1000):
        d.path([(left, y(teraflops)), (right, y(teraflops))], "thin")
        d.text(left - 8, y(teraflops) + 5, f"{teraflops:,}", "s", "end")
    for power in range(0, 13, 2):
        d.path([(x(2**power), bottom), (x(2**power), bottom + 5)], "to")
        d.text(x(2**power), bottom + 22, f"{2**power:,}", "s", "middle")
    d.text(12, 24, "trillions of operations per second, at best", "m")
    d.text(right, bottom + 42, "operations for each byte that moves", "m", "end")
    d.path(
        [(x(lowest), y(reach(lowest))), (x(A100.ridge), y(reach(A100.ridge))), (right, y(reach(4096)))],
        "bold",
        2,
    )  # fmt: skip
    d.path([(x(A100.ridge), y(reach(A100.ridge))), (x(A100.ridge), bottom)], "dash")
    d.text(x(A100.ridge) + 6, bottom - 8, f"ridge {A100.ridge:.0f}", "s")
    moved = least_bytes(CONTEXT, CONTEXT) + score_bytes(CONTEXT, CONTEXT)
    points = [
        ("Ida, if no heads share keys", intensity(1, CONTEXT, NO_GROUPS), "D", 12, 16),
        ("Ida", intensity(1, CONTEXT), "A", 12, 16),
        ("Jon, his scores in memory", flops(CONTEXT, CONTEXT) / moved, "B", 12, 16),
        ("Ida on DeepSeek-V3", intensity(1, CONTEXT, DEEPSEEK), "C", -14, -26),
        ("Jon", intensity(CONTEXT, CONTEXT), "B", -6, 24),
    ]
    for words, of, css, right_by, down in points:
        d.dot(x(of), y(reach(of)), css)
        d.text(x(of) + right_by, y(reach(of)) + down, f"{words}: {of:,.0f}", f"{css} m",
               "start" if right_by > 0 else "middle")  # fmt: skip
    return d


def draw_tiles(rows: int = 24, context: int = 48, tile: int = 4) -> Drawing:
    """Which tiles of scores a chunk in the middle of a prompt computes, and which Ida does."""
    left, cell, top = 84, 42, 46
    d = Drawing("The tiles of scores that a chunk of Jon's and Ida's row compute", 400)
    grid = tiles(rows, context, tile, tile)
    d.text(left, 26, f"keys 1 to {context}, in tiles of {tile}", "m")
    d.text(left - 10, top + 26, "Jon's", "m", "end")
    d.text(left - 10, top + 44, f"rows {context - rows + 1}", "m", "end")
    d.text(left - 10, top + len(grid) * cell - 16, f"to {context}", "m", "end")
    for row, kinds in enumerate(grid):
        for column, kind in enumerate(kinds):
            px, py = left + column * cell, top + row * cell
            d.box(px, py, cell - 3, cell - 3, EMPTY)
            if kind == "all":
                d.box(px, py, cell - 3, cell - 3, "B")
            if kind == "some":  # the rows of the tile, each as far as it sees
                for line in range(tile):
                    high = (cell - 3) / tile
                    d.box(px, py + line * high, (line + 1) * high, high, "B", 0)
    y = top + len(grid) * cell + 26
    d.text(left - 10, y + 20, "Ida's row", "m", "end")
    for column, _ in enumerate(tiles(1, context, 1, tile)[0]):
        d.box(left + column * cell, y + 8, cell - 3, (cell - 3) / tile + 6, "A")
    counts = [kind for kinds in grid for kind in kinds]
    words = (
        f"{counts.count('all')} tiles without a mask, {counts.count('some')} with one, "
        f"{counts.count('')} never read"
    )
    d.text(left, y + 62, words, "m")
    return d


def draw_split(context: int = CONTEXT) -> Drawing:
    """Ida's programs on 108 multiprocessors, without splits and with 16 segments."""
    left, cell, columns, longest = 20, 11, 36, 180
    d = Drawing("Ida's programs on 108 multiprocessors, without splits and with 16 segments", 262)
    d.text(left, 24, "108 multiprocessors", "m")
    d.text(left + columns * cell + 32, 24, "keys per program", "m")
    rules = [
        ("one program per KV head", 8, 1),
        ("16 segments per KV head", math.prod(programs([1])), 16),
    ]
    for number, (words, count, parts) in enumerate(rules):
        y = 62 + number * 102
        d.text(left, y - 14, f"{words}: {count} programs", "m")
        for place in range(SMS):
            px, py = left + place % columns * cell, y + place // columns * (cell + 4)
            filled = count // SMS + (place < count % SMS)
            d.box(px, py, cell - 2, cell + 2, EMPTY if not filled else "A")
            if filled > 1:
                d.box(px + 2, py + 3, cell - 6, cell - 4, "B")
        keys = context // parts
        bx = left + columns * cell + 32
        d.box(bx, y, longest / parts, 24, "A")
        d.text(bx, y + 44, f"{keys:,} in each", "m")
    d.text(left, 246, "orange: two programs, one after the other or side by side", "m")
    return d


def draw_packed() -> Drawing:
    """The rows of one program's tile, for Jon and for Ida."""
    left, wide, high, top = 110, 72, 20, 60
    rows, tokens = block_q()
    group = rows // tokens
    d = Drawing(
        "The 16 rows of a program's tile: 4 tokens of Jon's times 4 heads, and one of Ida's", 420
    )
    d.text(left, 26, "16 rows of one tile, which all use the keys of one KV head", "m")
    for place, (name, filled, css) in enumerate((("Jon", tokens, "B"), ("Ida", 1, "A"))):
        px = left + place * 240
        d.text(px, 50, f"{name}'s", "m")
        for row in range(rows):
            token, head = divmod(row, group)
            y = top + row * high
            used = token < filled
            d.box(px, y, wide, high - 2, css if used else EMPTY)
            if used:
                d.text(px + wide + 8, y + 14, f"token {token + 1}, head {head + 1}", "s")
    used = group / rows
    d.text(
        left,
        top + rows * high + 24,
        f"Ida fills {used:.0%} of the rows, and waits for memory anyway",
        "m",
    )
    return d


def draw_prefix(people: int = 10, shared: int = 2048, own: int = 256) -> Drawing:
    """What a step reads of ten people's caches, each by themselves and with the prefix read once."""
    left, scale, row, top = 20, 0.12, 13, 50
    alone, once = (size / MIB for size in prefix_bytes(people, shared, own))
    d = Drawing("Ten people's caches: read by each, and with the common prefix read once", 250)
    second = left + (shared + own) * scale + 50
    for place, words in enumerate((f"each alone: {alone:.0f} MiB", f"prefix once: {once:.0f} MiB")):
        px = left if place == 0 else second
        d.text(px, 28, words, "m")
        for person in range(people):
            y = top + person * row
            if place == 0:
                d.box(px, y, shared * scale - 2, row - 3, "C")
            d.box(px + shared * scale, y, own * scale, row - 3, "A")
        if place == 1:
            middle = top + (people // 2 - 0.5) * row
            d.box(px, middle, shared * scale - 12, row - 3, "C")
            edge = px + shared * scale - 6
            d.path([(edge, top), (edge, top + people * row - 3)], "to", 1.5)
    y = top + people * row + 34
    for px, css, words in (
        (left, "C", f"{shared:,} tokens of instructions"),
        (left + 260, "A", f"{own} of each person's own"),
    ):
        d.box(px, y - 11, 12, 12, css)
        d.text(px + 18, y, words, "m")
    return d


def draw_step() -> Drawing:
    """The rows of the step in which Jon comes, and the blocks that their slots lie in."""
    meta = together()[1]
    left, top, cell = 92, 58, 14
    starts = meta.query_start_loc.tolist()
    d = Drawing(
        "The 37 rows of a step, Ida's one and Jon's 36, and the blocks that they write into", 236
    )
    d.text(left, 26, "rows of the step, end to end", "m")
    for i, css in enumerate("AB"):
        for row in range(starts[i], starts[i + 1]):
            d.box(left + row * cell, top - 18, cell - 2, 26, css)
    d.text(left - 10, top, "rows", "m", "end")
    blocks = sorted({*(meta.slot_mapping // meta.block_size).tolist()})
    y, wide = 150, 128
    d.text(left - 10, y + 22, "blocks", "m", "end")
    slots = meta.slot_mapping.tolist()
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts)).tolist()
    for place, block in enumerate(blocks):
        px = left + place * (wide + 4)
        d.text(px, y + 54, f"block {block}", "s")
        for slot in range(meta.block_size):
            at = block * meta.block_size + slot
            css = EMPTY
            if at in slots:
                css = "AB"[owner[slots.index(at)]]
            elif block == blocks[0] and slot < slots[0] % meta.block_size:
                css = "none edge"
            d.box(px + slot * 8, y, 7, 34, css, 0)
    for place, block in enumerate(blocks):
        rows = [row for row, at in enumerate(slots) if at // meta.block_size == block]
        middle = left + (rows[0] + rows[-1] + 1) / 2 * cell
        target = left + place * (wide + 4) + (slots[rows[0]] % 16 + slots[rows[-1]] % 16 + 1) * 4
        d.arrow(middle, top + 12, target, y - 6)
    d.text(left, y + 76, "blue: Ida, orange: Jon; outlined: written in an earlier step", "m")
    return d


PICTURES = {
    "roofline": draw_roofline,
    "tiles": draw_tiles,
    "packed": draw_packed,
    "split": draw_split,
    "prefix": draw_prefix,
    "step": draw_step,
}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
