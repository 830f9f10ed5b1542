"""Draw the pictures of this phase's guide from runs of the engine, as SVG.

    python phase-01-architecture/pictures.py        # writes phase-01-architecture/pictures/*.svg

A picture has a white ground of its own, because a page may be dark. A test draws them again and
compares.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

from anna import EVERYBODY, FATES, passes, serve

from mini_vllm.trace.types import StepTrace

FOLDER = Path(__file__).parent / "pictures"
COLOUR = {"anna": "#0b6cb8", "ben": "#b35900", "cleo": "#137a4b", "dov": "#a03a84"}
INK, PALE, LINE = "#1f2328", "#eceff3", "#c3c9d1"


@functools.cache
def run(title: str) -> list[StepTrace]:
    """The steps of one of the guide's machines."""
    groups, settings = FATES[title]
    return serve(*groups, **settings)


class Svg:
    """Rectangles and words on a white sheet; `text` gives it back."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size, self.title = (width, height), title
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, fill: str, stroke: str = "none") -> None:
        shape = f'x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="2"'
        self.parts.append(f'<rect {shape} fill="{fill}" stroke="{stroke}"/>')

    def word(
        self, x: float, y: float, text: object, fill: str = INK, anchor: str = "start"
    ) -> None:
        place = f'x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}"'
        self.parts.append(f"<text {place}>{text}</text>")

    def dash(self, x1: float, y1: float, x2: float, y2: float, colour: str = INK) -> None:
        ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
        self.parts.append(f'<line {ends} stroke="{colour}" stroke-dasharray="3 3"/>')

    def text(self) -> str:
        width, height = self.size
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        head += f' width="{width}" font-family="system-ui, sans-serif" font-size="14">'
        sheet = f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>'
        return (
            "\n".join([head, f"<title>{self.title}</title>", sheet, *self.parts, "</svg>"]) + "\n"
        )


def ticks(svg: Svg, y: float, xs: Iterable[tuple[float, object]]) -> None:
    for x, label in xs:
        svg.word(x, y, label, anchor="middle")


def seated(spans: dict[str, tuple[int, int]], seats: int) -> dict[str, int]:
    """Which seat each person had: the lowest that was free when they came."""
    free_from = [1] * seats
    chosen = {}
    for name, (first, last) in spans.items():  # in the order in which they came
        chosen[name] = next(i for i, free in enumerate(free_from) if free <= first)
        free_from[chosen[name]] = last + 1
    return chosen


def draw_seats() -> str:
    """Static against continuous batching: who sits where, in which pass."""
    left, unit, row = 14, 6.8, 27
    svg = Svg(628, 300, "One at a time, fixed batches, and batches decided before each pass")
    y = 30.0
    for title, (_, settings) in list(FATES.items())[:3]:
        spans = passes(run(title))
        seat = seated(spans, settings["seats"])
        total = max(last for _, last in spans.values())
        svg.word(left, y, f"{title}: {total} passes")
        for number in range(settings["seats"]):
            svg.box(left, y + 8 + number * row, total * unit, row - 4, PALE, LINE)
        for name, (first, last) in spans.items():
            x, top = left + (first - 1) * unit, y + 8 + seat[name] * row
            svg.box(x, top, (last - first + 1) * unit, row - 4, COLOUR[name])
            svg.word(x + 5, top + 17, name.title(), "#ffffff")
        y += 8 + settings["seats"] * row + 30
    ticks(svg, y - 14, ((left + (p - 0.5) * unit, p) for p in (1, 8, 16, 24, 64, 72, 80, 88)))
    svg.word(left, y + 6, "pass through the model; grey: an empty seat")
    return svg.text()


def draw_budget(last: int = 12) -> str:
    """Four people under a budget of 16 tokens a pass: each pass a column, a token a row."""
    left, cell, unit, base = 34, 48, 13, 250
    svg = Svg(628, 304, "Who gets how many of 16 tokens in each pass")
    steps = run("four seats, 16 tokens a pass")[:last]
    for step in steps:
        x, y = left + (step.index - 1) * cell, float(base)
        for part in step.scheduled:
            height = part.num_scheduled_tokens * unit
            y -= height
            svg.box(x + 2, y, cell - 6, height - 1, COLOUR[part.request_id])
            if height > unit:
                middle = x + cell / 2 - 1, y + height / 2 + 4
                svg.word(*middle, part.num_scheduled_tokens, "#ffffff", "middle")
        svg.word(x + cell / 2, base + 18, step.index, anchor="middle")
    svg.dash(left, base - 16 * unit, left + last * cell, base - 16 * unit)
    ticks(svg, base + 4, [(left - 16, 0)])
    ticks(svg, base - 16 * unit + 4, [(left - 16, 16)])
    legend(svg, left, base + 40)
    return svg.text()


def legend(svg: Svg, x: float, y: float) -> None:
    for name in EVERYBODY:
        svg.box(x, y - 11, 12, 12, COLOUR[name])
        svg.word(x + 17, y, name.title())
        x += 72
    svg.word(x, y, "columns: passes")


def draw_blocks(last: int = 13) -> str:
    """Six blocks: whose each one is, and how many of its 16 slots are filled."""
    left, cell, row, top = 64, 42, 30, 40
    svg = Svg(628, 284, "Six blocks of 16 tokens, their owners and what they hold")
    steps = run("four seats, 6 blocks")[:last]
    for block in range(1, 7):
        svg.word(left - 6, top + (block - 1) * row + 19, f"block {block}", anchor="end")
        svg.box(left, top + (block - 1) * row, last * cell - 4, row - 4, PALE, LINE)
    for step in steps:
        x = left + (step.index - 1) * cell
        for part in step.scheduled:
            filled = part.num_computed_tokens + part.num_scheduled_tokens
            for number, block in enumerate(part.block_ids):
                y = top + (block - 1) * row
                svg.box(x, y, cell - 4, row - 4, COLOUR[part.request_id])
                slots = min(16, filled - 16 * number)
                svg.word(x + cell / 2 - 2, y + 18, slots, "#ffffff", "middle")
        svg.word(x + cell / 2 - 2, top + 6 * row + 16, step.index, anchor="middle")
        for name in step.preempted:
            svg.dash(x - 2, top - 10, x - 2, top + 6 * row, COLOUR[name])
            svg.word(x + 4, top - 14, f"{name.title()} is preempted", COLOUR[name])
    legend(svg, left, top + 6 * row + 44)
    return svg.text()


def draw_fates(last: int = 88) -> str:
    """Every machine of the guide, every person: a thin line waits, a thick one is computed."""
    left, unit, row = 52, 6.4, 16
    svg = Svg(628, 540, "What became of Anna, Ben, Cleo and Dov on five machines")
    y = 26.0
    for title in FATES:
        steps = run(title)
        svg.word(left, y, f"{title}: {len(steps)} passes")
        for number, name in enumerate(EVERYBODY):
            middle = y + 16 + number * row
            svg.word(left - 8, middle + 4, name.title(), COLOUR[name], "end")
            busy = [step.index for step in steps if _has(step, name)]
            svg.box(left, middle - 0.75, busy[-1] * unit, 1.5, COLOUR[name])
            for first, end in _runs(busy):
                x, wide = left + (first - 1) * unit, (end - first + 1) * unit - 0.5
                svg.box(x, middle - 5, wide, 10, COLOUR[name])
        y += 4 * row + 34
    ticks(svg, y - 8, ((left + (p - 0.5) * unit, p) for p in (1, 8, 16, 24, 64, 72, 80, last)))
    svg.word(left, y + 12, "pass through the model; thin: waiting, thick: computed in this pass")
    return svg.text()


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
    "seats.svg": draw_seats,
    "budget.svg": draw_budget,
    "blocks.svg": draw_blocks,
    "fates.svg": draw_fates,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8", newline="\n")
        print(f"phase-01-architecture/pictures/{name}")


if __name__ == "__main__":
    main()
