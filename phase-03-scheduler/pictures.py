"""Draw the pictures of this phase's pages from runs of the engine, as SVG.

    python phase-03-scheduler/pictures.py        # writes phase-03-scheduler/pictures/*.svg

What they are drawn with is in `course/docs/drawing.py`.
"""

from __future__ import annotations

from noon import BLOCKS, COMES, PROMPTS, got, noon

from course.docs.drawing import Drawing, write_all

COLOUR = {"eve": "A", "fay": "B", "gil": "C", "hal": "D"}
SAID = {name: name.capitalize() for name in PROMPTS}


def legend(d: Drawing, x: float, y: float) -> float:
    """A square and a name for each; returns where the line may go on."""
    for name, css in COLOUR.items():
        d.box(x, y - 11, 12, 12, css)
        d.text(x + 17, y, SAID[name], "m")
        x += 34 + 8 * len(SAID[name])
    return x


def draw_beside_eve(last: int = 10) -> Drawing:
    """The steps that bring Eve her first tokens, as high as they are long, under two budgets."""
    left, wide, unit = 44, 56, 3.2
    d = Drawing("What is computed in the steps that bring Eve her tokens, with two budgets", 404)
    for budget, base in ((64, 220), (16, 350)):
        d.text(left, base - 188 if budget == 64 else base - 84, f"a budget of {budget} tokens")
        for step in noon(max_num_batched_tokens=budget)[:last]:
            x, y = left + (step.index - 1) * wide, float(base)
            for name in PROMPTS:
                tokens = got(step, name)
                y -= tokens * unit
                if tokens:
                    d.box(x, y, wide - 8, tokens * unit, COLOUR[name], 0)
            total = sum(got(step, name) for name in PROMPTS)
            d.text(x + wide / 2 - 4, y - 5, total, "m", "middle")
            d.text(x + wide / 2 - 4, base + 17, step.index, "s", "middle")
    x = legend(d, left, 391)
    d.text(x, 391, "height: tokens in the step; below: its number", "m")
    return d


def draw_noon() -> Drawing:
    """Who waits and who is computed in all of noon's steps, and the free blocks."""
    left, cell, row, top, high = 46, 23.4, 46, 16, 60
    steps = noon()
    d = Drawing("Eve, Fay, Gil and Hal in 25 steps, and the blocks that are free", 338)
    for number, name in enumerate(PROMPTS):
        y = top + number * row
        d.text(left - 8, y + 20, SAID[name], "m", "end")
        ends = max(step.index for step in steps if got(step, name))
        for step in steps:
            x, tokens = left + (step.index - 1) * cell, got(step, name)
            if tokens:
                d.box(x, y, cell - 2, 30, COLOUR[name])
                d.text(x + cell / 2 - 1, y + 20, tokens, "on m", "middle")
            elif COMES[name] <= step.index < ends:
                d.box(x, y + 12, cell - 2, 6, COLOUR[name])
            if name in step.preempted:
                d.path([(x + cell / 2 - 1, y + 20), (x + cell / 2 - 1, y + 43)], "bold", 2)
                d.text(x + cell / 2 + 4, y + 42, "loses his blocks", "s")
    base = top + 4 * row + high + 26
    d.text(left, base - high - 10, f"free blocks, of {BLOCKS}", "m")
    for step in steps:
        x = left + (step.index - 1) * cell
        free = BLOCKS - step.blocks_in_use
        d.box(
            x, base - free * high / BLOCKS, cell - 2, max(free * high / BLOCKS, 1), "none edge", 0
        )
        d.text(x + cell / 2 - 1, base + 17, step.index, "s", "middle")
    d.text(left, base + 40, "thick: computed, with the number of tokens; thin: waiting", "m")
    return d


PICTURES = {"beside-eve": draw_beside_eve, "noon": draw_noon}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
