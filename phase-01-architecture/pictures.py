"""Draw the pictures of this phase's guide from runs of the engine, as SVG.

    python phase-01-architecture/pictures.py        # writes phase-01-architecture/pictures/*.svg

What they are drawn with is in `course/docs/drawing.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from anna import EVERYBODY, FATES, passes, serve

from course.docs.drawing import Drawing, write_all
from mini_vllm.trace.types import StepTrace

COLOUR = {"anna": "A", "ben": "B", "cleo": "C", "dov": "D"}
EMPTY = "none thin"


@functools.cache
def run(title: str) -> list[StepTrace]:
    """The steps of one of the guide's machines."""
    groups, settings = FATES[title]
    return serve(*groups, **settings)


def ticks(d: Drawing, y: float, xs: Iterable[tuple[float, object]]) -> None:
    for x, label in xs:
        d.text(x, y, label, "m", "middle")


def assign_slots(spans: dict[str, tuple[int, int]], num_slots: int) -> dict[str, int]:
    """Which batch slot each person had: the lowest that was free when they came."""
    free_from = [1] * num_slots
    chosen = {}
    for name, (first, last) in spans.items():  # in the order in which they came
        chosen[name] = next(i for i, free in enumerate(free_from) if free <= first)
        free_from[chosen[name]] = last + 1
    return chosen


def draw_slots() -> Drawing:
    """Static against continuous batching: who has which batch slot, in which pass."""
    left, unit, row = 14, 6.8, 27
    d = Drawing("One at a time, fixed batches, and batches decided before each pass", 300, 628)
    y = 30.0
    for title, (_, settings) in list(FATES.items())[:3]:
        spans = passes(run(title))
        slot = assign_slots(spans, settings["max_num_seqs"])
        total = max(last for _, last in spans.values())
        d.text(left, y, f"{title}: {total} passes", "m")
        for number in range(settings["max_num_seqs"]):
            d.box(left, y + 8 + number * row, total * unit, row - 4, EMPTY)
        for name, (first, last) in spans.items():
            x, top = left + (first - 1) * unit, y + 8 + slot[name] * row
            d.box(x, top, (last - first + 1) * unit, row - 4, COLOUR[name])
            d.text(x + 5, top + 17, name.title(), "on m")
        y += 8 + settings["max_num_seqs"] * row + 30
    ticks(d, y - 14, ((left + (p - 0.5) * unit, p) for p in (1, 8, 16, 24, 64, 72, 80, 88)))
    d.text(left, y + 6, "pass through the model; grey: an empty slot", "m")
    return d


def draw_budget(last: int = 12) -> Drawing:
    """Four people under a budget of 16 tokens a pass: each pass a column, a token a row."""
    left, cell, unit, base = 34, 48, 13, 250
    d = Drawing("Who gets how many of 16 tokens in each pass", 304, 628)
    steps = run("four slots, 16 tokens a pass")[:last]
    for step in steps:
        x, y = left + (step.index - 1) * cell, float(base)
        for part in step.scheduled:
            height = part.num_scheduled_tokens * unit
            y -= height
            d.box(x + 2, y, cell - 6, height - 1, COLOUR[part.request_id])
            if height > unit:
                middle = x + cell / 2 - 1, y + height / 2 + 4
                d.text(*middle, part.num_scheduled_tokens, "on m", "middle")
        d.text(x + cell / 2, base + 18, step.index, "m", "middle")
    d.path([(left, base - 16 * unit), (left + last * cell, base - 16 * unit)], "dash")
    ticks(d, base + 4, [(left - 16, 0)])
    ticks(d, base - 16 * unit + 4, [(left - 16, 16)])
    legend(d, left, base + 40)
    return d


def legend(d: Drawing, x: float, y: float) -> None:
    for name in EVERYBODY:
        d.box(x, y - 11, 12, 12, COLOUR[name])
        d.text(x + 17, y, name.title(), "m")
        x += 72
    d.text(x, y, "columns: passes", "m")


def draw_blocks(last: int = 13) -> Drawing:
    """Six blocks: whose each one is, and how many of its 16 slots are filled."""
    left, cell, row, top = 64, 42, 30, 40
    d = Drawing("Six blocks of 16 tokens, their owners and what they hold", 284, 628)
    steps = run("four slots, 6 blocks")[:last]
    for block in range(1, 7):
        d.text(left - 6, top + (block - 1) * row + 19, f"block {block}", "m", "end")
        d.box(left, top + (block - 1) * row, last * cell - 4, row - 4, EMPTY)
    for step in steps:
        x = left + (step.index - 1) * cell
        for part in step.scheduled:
            filled = part.num_computed_tokens + part.num_scheduled_tokens
            for number, block in enumerate(part.block_ids):
                y = top + (block - 1) * row
                d.box(x, y, cell - 4, row - 4, COLOUR[part.request_id])
                slots = min(16, filled - 16 * number)
                d.text(x + cell / 2 - 2, y + 18, slots, "on m", "middle")
        d.text(x + cell / 2 - 2, top + 6 * row + 16, step.index, "m", "middle")
        for name in step.preempted:
            d.path([(x - 2, top - 10), (x - 2, top + 6 * row)], "dash")
            d.text(x + 4, top - 14, f"{name.title()} is preempted", f"{COLOUR[name]} m")
    legend(d, left, top + 6 * row + 44)
    return d


def draw_fates(last: int = 88) -> Drawing:
    """Every machine of the guide, every person: a thin line waits, a thick one is computed."""
    left, unit, row = 52, 6.4, 16
    d = Drawing("What became of Anna, Ben, Cleo and Dov on five machines", 540, 628)
    y = 26.0
    for title in FATES:
        steps = run(title)
        d.text(left, y, f"{title}: {len(steps)} passes", "m")
        for number, name in enumerate(EVERYBODY):
            middle = y + 16 + number * row
            d.text(left - 8, middle + 4, name.title(), f"{COLOUR[name]} m", "end")
            busy = [step.index for step in steps if _has(step, name)]
            d.box(left, middle - 0.75, busy[-1] * unit, 1.5, COLOUR[name])
            for first, end in _runs(busy):
                x, wide = left + (first - 1) * unit, (end - first + 1) * unit - 0.5
                d.box(x, middle - 5, wide, 10, COLOUR[name])
        y += 4 * row + 34
    ticks(d, y - 8, ((left + (p - 0.5) * unit, p) for p in (1, 8, 16, 24, 64, 72, 80, last)))
    d.text(left, y + 12, "pass through the model; thin: waiting, thick: computed in this pass", "m")
    return d


def _has(step: StepTrace, name: str) -> bool:
    return any(part.request_id == name for part in step.scheduled)


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """[1, 2, 3, 7, 8] -> [(1, 3), (7, 8)]"""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


PICTURES = {
    "slots": draw_slots,
    "budget": draw_budget,
    "blocks": draw_blocks,
    "fates": draw_fates,
}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
