"""Draw the pictures of this phase's pages from `night.py` and runs of the engine, as SVG.

    python phase-05-cuda-graphs/pictures.py        # writes phase-05-cuda-graphs/pictures/*.svg

What they are drawn with is in `course/docs/drawing.py`.
"""

from __future__ import annotations

import itertools
import math

from morning import captures, morning, program, stale_step
from night import DRIVER, PYTHON, Span, card_ms, host_ms, launches, layer_lanes, padded

from course.docs.drawing import Drawing, write_all

EMPTY = "none thin"
CONTEXT = 500


def draw_lanes() -> Drawing:
    """One layer of Kim's step on host and card: launched one by one, and replayed."""
    left, unit, high = 70, 6.4, 26
    d = Drawing("One layer of Kim's step, launched one by one and replayed", 312)

    def bars(y: float, spans: list[Span], css: str) -> None:
        for span in spans:
            long = (span.end - span.begin) * unit
            x = left + span.begin * unit
            if long < 1:  # nothing to read: a tick
                d.path([(x, y), (x, y + high)], "to", 1.5)
                continue
            d.box(x, y, long - 1.5, high, css)
            if long > 60:
                d.text(x + long / 2, y + 18, span.name.removesuffix("_proj"), "on m", "middle")

    for top, replayed in ((22, False), (168, True)):
        host, device = layer_lanes(DRIVER, replayed=replayed)
        words = "replayed: one launch" if replayed else f"one by one: {len(host)} launches"
        d.text(left, top, f"{words}, the layer is done after {device[-1].end:.0f} µs", "m")
        d.text(left - 10, top + 32, "host", "m", "end")
        d.text(left - 10, top + 68, "card", "m", "end")
        bars(top + 14, host, "A")
        bars(top + 50, device, "C")
        d.path([(left, top + 84), (left + 88 * unit, top + 84)], "thin")
        for tick in range(0, 89, 20):
            d.text(left + tick * unit, top + 101, f"{tick} µs", "s", "middle")
    d.text(
        left,
        300,
        f"to scale, on paper: an H100, {DRIVER:g} µs per launch; thin ticks: kernels that read little",
        "m",
    )
    return d


def draw_crossing() -> Drawing:
    """Milliseconds of a step against people, for the card and for the host."""
    left, right, top, bottom = 64, 500, 36, 268
    highest = 4.4

    def x(people: int) -> float:
        return left + math.log2(people) / 9 * (right - left)

    def y(ms: float) -> float:
        return bottom - ms / highest * (bottom - top)

    d = Drawing("How long a step of Llama-3.2-1B takes the card, and its launches the host", 350)
    for ms in range(5):
        d.path([(left, y(ms)), (right, y(ms))], "thin")
        d.text(left - 8, y(ms) + 5, ms, "s", "end")
    d.text(12, 22, "ms per step", "m")
    counts = [2**power for power in range(10)]
    for people in counts:
        d.text(x(people), bottom + 20, people, "s", "middle")
    d.text(
        right,
        bottom + 42,
        f"decoding people, each with {CONTEXT} tokens in the cache",
        "m",
        "end",
    )
    fine = [round(2 ** (step / 4)) for step in range(37)]
    d.path([(x(people), y(card_ms(rows=people, context=CONTEXT))) for people in fine], "bold", 3)
    d.text(right + 8, y(card_ms(rows=512, context=CONTEXT)) + 5, "the card", "m")
    for cost, mode, css, above in (
        (PYTHON, "NONE", "B", 0),
        (DRIVER, "NONE", "D", 4),
        (PYTHON, "PIECEWISE", "A", -6),
    ):
        level = y(host_ms(cost, mode=mode))
        d.path([(left, level), (right, level)], "dash", 2)
        d.text(right + 8, level + 5 - above, f"{launches(mode)} at {cost:g} µs", f"{css} m")
    d.text(
        left,
        336,
        "dashed: the host's time to launch the pass, the same for any number of rows",
        "m",
    )
    return d


def draw_sizes(largest: int = 64) -> Drawing:
    """How many rows a step of 1 to 64 runs as."""
    left, cell, base, unit = 40, 9, 276, 3.6
    d = Drawing("How many rows a step of 1 to 64 people runs as", 336)
    for rows in (8, 16, 24, 32, 40, 48, 56, 64):
        d.path([(left, base - rows * unit), (left + largest * cell, base - rows * unit)], "thin")
        d.text(left - 8, base - rows * unit + 5, rows, "s", "end")
    for people in range(1, largest + 1):
        px = left + (people - 1) * cell
        d.box(px, base - people * unit, cell - 2, people * unit, "A", 0)
        more = padded(people) - people
        if more:
            d.box(px, base - (people + more) * unit, cell - 2, more * unit, "B", 0)
        if people in (1, 9, 33, 64):
            d.text(px + cell / 2, base + 18, people, "s", "middle")
    d.text(left, 20, "rows", "m", "end")
    d.text(left + 32 * cell + 14, base - 40 * unit - 8, "33 run as 40", "m", "end")
    d.text(
        left,
        base + 44,
        "blue: people, one row each; orange: padding up to the next capture size",
        "m",
    )
    return d


def draw_launches() -> Drawing:
    """The launches of a pass of the shipped model: all kernels, in pieces, in one graph."""
    left, cell, high = 20, 11.8, 30
    outside = [kernel.splitting for kernel in program()]
    d = Drawing("The launches of a pass of the shipped model under three runtime modes", 270)
    groups = [(kind, len(list(some))) for kind, some in itertools.groupby(outside)]
    pieces = [(kind, 1) for kind, count in groups for _ in range(count if kind else 1)]
    spans = [count for kind, count in groups for count in ([1] * count if kind else [count])]
    rows = (
        ("NONE", [(kind, 1) for kind in outside]),
        ("PIECEWISE", [(kind, span) for (kind, _), span in zip(pieces, spans, strict=True)]),
        ("FULL", [(False, len(outside))]),
    )
    for place, (mode, boxes) in enumerate(rows):
        y = 42 + place * 68
        counted = f"{len(boxes)} launches" if len(boxes) > 1 else "1 launch"
        d.text(left, y - 10, f"{mode}: {counted}", "m")
        at = 0
        for kind, span in boxes:
            graph = mode != "NONE" and not kind
            css = "B" if kind else "C" if graph else "A"
            d.box(left + at * cell, y, span * cell - 2, high, css)
            at += span
    y = 258
    for px, css, words in (
        (left, "A", "a kernel"),
        (left + 100, "B", "write of keys and values, attention"),
        (left + 384, "C", "a graph"),
    ):
        d.box(px, y - 11, 12, 12, css)
        d.text(px + 18, y, words, "m")
    return d


def draw_stale() -> Drawing:
    """The slots into which a step of three people and a row of padding writes."""
    step, size, top, left = stale_step(), 4, 56, 96
    names = ["lou", "kim", "max"]
    d = Drawing("A padding row that writes into a full block of Lou's", 318)
    d.text(left, 26, "rows of the step, and the slots they write to", "m")
    lower = 190
    at = {}  # where a slot is drawn
    x = 20.0
    for name, css in zip(names, "ABC", strict=True):
        shown = step.blocks[name][-3 if name == "lou" else -2 :]
        d.text(x, lower + 76, f"{name.capitalize()}'s newest blocks", "m")
        for block in shown:
            d.text(x, lower + 48, block, "s")
            for slot in range(size):
                px = x + slot * 17
                at[block * size + slot] = px + 8
                newest = max(s for s in step.slots[:3] if s // size == shown[-1])
                filled = block != shown[-1] or block * size + slot <= newest
                wrong = block * size + slot == step.slots[3]
                d.box(px, lower, 15, 32, "D" if wrong else css if filled else EMPTY, 0)
            x += size * 17 + 8
        x += 14
    for row, (slot, css) in enumerate(zip(step.slots, ["A", "B", "C", "D"], strict=True)):
        px = left + row * 130
        words = names[row].capitalize() if row < len(names) else "padding"
        d.cell(px, top, 104, 30, words, css)
        d.text(px + 52, top + 50, f"slot {slot}", "s", "middle")
        d.arrow(px + 52, top + 58, at[slot], lower - 4)
    d.text(20, 304, "the numbers below the slots are block numbers", "m")
    return d


def draw_morning() -> Drawing:
    """The steps of the morning: their rows, the padding, the mode and the launches."""
    left, wide, base, unit = 78, 61, 232, 3.2
    steps = morning()
    d = Drawing("Nine steps of a morning: rows, padding, runtime mode and launches", 338)
    css = {"FULL": "C", "PIECEWISE": "A", "NONE": "D"}
    for row, words in enumerate(("step", "mode", "launches")):
        d.text(left - 8, base + 20 + row * 22, words, "s", "end")
    for number, (_, ran) in enumerate(steps, 1):
        px = left + (number - 1) * wide
        rows, padding = ran.num_unpadded_tokens, ran.num_paddings
        d.box(px, base - rows * unit, wide - 10, rows * unit, css[ran.runtime_mode], 0)
        if padding:
            d.box(px, base - (rows + padding) * unit, wide - 10, padding * unit, "B", 0)
        words = f"{rows} as {rows + padding}" if padding else str(rows)
        middle = px + wide / 2 - 5
        d.text(middle, base - (rows + padding) * unit - 6, words, "m", "middle")
        short = {"PIECEWISE": "PIECES"}.get(ran.runtime_mode, ran.runtime_mode)
        for row, each in enumerate((number, short, ran.launches)):
            d.text(middle, base + 20 + row * 22, each, "s", "middle")
    x = float(left)
    for colour, words in (("C", "FULL"), ("A", "PIECEWISE"), ("D", "NONE"), ("B", "padding")):
        d.box(x, 312, 12, 12, colour)
        d.text(x + 18, 323, words, "m")
        x += 50 + 9 * len(words)
    return d


def draw_nested() -> Drawing:
    """The wrapper of the whole model around those of the pieces, and which mode ends where."""
    left, right, top, bottom, high = 120, 620, 24, 246, 34
    d = Drawing("The FULL wrapper around the model, PIECEWISE wrappers around its pieces", 286)
    d.box(left, top, right - left, bottom - top, "none edge", 8)
    d.text(left + 12, top + 22, "CUDAGraphWrapper, FULL: the whole model", "m")
    kinds = [kind for kind, _ in itertools.groupby(program(), key=lambda kernel: kernel.splitting)]
    piece = (right - left - 56 - 26 * kinds.count(True)) / kinds.count(False)
    for row, (mode, css) in enumerate((("FULL", "C"), ("PIECEWISE", "A"), ("NONE", "D"))):
        y = top + 48 + row * 56
        d.text(12, y + 22, mode, f"{css} m")
        if mode == "FULL":
            d.arrow(90, y + high / 2, left, y + high / 2)
            d.cell(left + 28, y, right - left - 56, high, "one replay", css)
            continue
        d.arrow(90, y + high / 2, left + 26, y + high / 2)
        x = left + 28.0
        for outside in kinds:
            if outside:
                for part in range(2):
                    d.box(x + part * 13, y, 11, high, "B")
                x += 26
            elif mode == "PIECEWISE":
                d.cell(x, y, piece - 2, high, "replay", css)
                x += piece
            else:
                for part in range(5):
                    d.box(x + part * piece / 5, y, piece / 5 - 2, high, css)
                x += piece
    d.text(left, 272, "orange: the write of keys and values, and attention, outside of pieces", "m")
    return d


def draw_pool() -> Drawing:
    """The captures of the shipped engine's start in two orders, and what each takes of the pool."""
    left, cell, wide = 20, 60, 50
    orders = (("largest first, the engine's order", False, 98), ("smallest first", True, 290))
    most = captures(smallest_first=True)[-1].pool
    d = Drawing("The captures of a start in two orders, and the memory pool that they share", 366)

    def high(count: int) -> float:
        return count / most * 120

    for words, smallest_first, base in orders:
        made = captures(smallest_first)
        total = made[-1].pool / 1024
        d.text(left, base - high(made[-1].pool) - 10, f"{words}: a pool of {total:,.0f} KiB", "m")
        before = newest = 0
        for place, each in enumerate(made):
            x = left + place * cell
            d.box(x, base - high(each.pool), wide, high(each.pool), EMPTY, 0)
            if each.pool > before:
                newest = before
            css = "B" if each.pool > before else "A"
            d.box(x, base - high(newest + each.needs), wide, high(each.needs), css, 0)
            before = each.pool
            d.text(x + wide / 2, base + 17, each.rows, "s", "middle")
        for mode in dict.fromkeys(each.mode for each in made):
            at = next(i for i, each in enumerate(made) if each.mode == mode)
            d.text(left + at * cell, base + 35, f"{mode}, rows", "s")
    x = float(left)
    for css, words in (
        ("B", "new memory"),
        ("A", "memory of an earlier capture"),
        (EMPTY, "the pool"),
    ):
        d.box(x, 344, 12, 12, css)
        d.text(x + 18, 355, words, "m")
        x += 50 + 8 * len(words)
    return d


PICTURES = {
    "lanes": draw_lanes,
    "crossing": draw_crossing,
    "launches": draw_launches,
    "stale": draw_stale,
    "sizes": draw_sizes,
    "morning": draw_morning,
    "nested": draw_nested,
    "pool": draw_pool,
}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
