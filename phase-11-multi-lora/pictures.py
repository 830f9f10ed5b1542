"""The pictures of this phase's guide. The gate's is drawn from steps of the engine.

python phase-11-multi-lora/pictures.py
"""

from __future__ import annotations

from tenants import run_steps

from course.docs.drawing import Drawing, write_all

COLOUR = {"ada": "A", "bo": "B", "cy": "C", "base": "none"}
REQUESTS = [("ada", 6), ("bo", 3), ("cy", 2), ("base", 4), ("ada", 3)]


def draw_delta() -> Drawing:
    """A weight, and the two factors of a change to it."""
    d = Drawing("A weight of 4,096 by 4,096, and a change to it of rank 16", 214)
    d.text(14, 104, "x", "m")
    d.arrow(30, 92, 84, 60)
    d.arrow(30, 106, 84, 158)
    d.cell(90, 14, 250, 92, "W: 4,096 × 4,096", "none")
    d.text(352, 34, "the base, the same for all", "s")
    d.cell(90, 138, 250, 34, "A: 16 × 4,096", "A")
    d.text(215, 194, "shrink to 16 numbers", "s", "middle")
    d.arrow(344, 155, 372, 155)
    d.cell(378, 138, 130, 34, "B: 4,096 × 16", "A")
    d.text(443, 194, "expand", "s", "middle")
    d.arrow(512, 155, 574, 112)
    d.arrow(344, 60, 574, 90)
    d.cell(580, 80, 46, 36, "+", "none")
    return d


def draw_rows() -> Drawing:
    """A step's rows: one product with the base, and then a pair of small ones for each adapter."""
    rows = ["ada", "bo", "base", "ada", "cy", "bo"]
    d = Drawing(
        "Six rows of a step: one product with the base, then one pair of small ones per adapter",
        262,
    )
    d.text(14, 18, "the step's rows", "s")
    d.text(206, 18, "all of them: the base's product", "s")
    d.text(442, 18, "each adapter: its rows", "s")
    for i, name in enumerate(rows):
        top = 30 + 37 * i
        d.cell(14, top, 96, 30, name, COLOUR[name])
        d.arrow(114, top + 15, 200, top + 15)
    d.cell(206, 30, 150, 215, "x Wᵀ", "none")
    top = 30
    for name in ("ada", "bo", "cy"):
        mine = [i for i, row in enumerate(rows) if row == name]
        height = 34 * len(mine)
        for i in mine:
            d.arrow(360, 45 + 37 * i, 436, top + height / 2)
        numbers = " and ".join(str(i + 1) for i in mine)
        d.cell(442, top, 184, height, f"rows {numbers}: A, B" if mine[1:] else f"row {numbers}: A, B",
               COLOUR[name])  # fmt: skip
        top += height + 20
    return d


def draw_places() -> Drawing:
    """Where adapters are."""
    d = Drawing("Adapters on disk, in memory and in slots", 196)
    places = (
        ("on disk", "any number", 5, 14),
        ("registered: CPU memory", "max_cpu_loras = 3", 3, 250),
        ("active: slots", "max_loras = 2", 2, 480),
    )
    names = ["ada", "bo", "cy", "4th", "5th"]
    for title, limit, count, left in places:
        d.text(left, 20, title, "m")
        for i in range(count):
            d.cell(left, 34 + 26 * i, 84, 22, names[i], COLOUR.get(names[i], "none"))
        d.text(left, 186, limit, "s")
    d.arrow(106, 60, 244, 60)
    d.text(136, 50, "load", "s")
    d.arrow(340, 60, 474, 60)
    d.text(372, 50, "activate", "s")
    return d


def draw_gate() -> Drawing:
    """Which requests run in which step, with two slots."""
    steps = run_steps(REQUESTS, max_loras=2)
    d = Drawing("Five requests at the gate with two slots, step by step", 250)
    d.text(14, 18, "request", "s")
    for step in range(len(steps)):
        d.text(186 + 74 * step, 18, f"step {step + 1}", "s", "middle")
    for number, (tenant, _) in enumerate(REQUESTS):
        top = 30 + 42 * number
        d.text(14, top + 21, f"{number + 1}  {tenant}", "m")
        runs = [step for step, numbers in enumerate(steps) if number in numbers]
        for step in runs:
            d.cell(152 + 74 * step, top, 68, 32, "", COLOUR[tenant])
        for step in range(runs[0]):
            d.text(186 + 74 * step, top + 21, "skipped", "s", "middle")
    return d


PICTURES = {"delta": draw_delta, "rows": draw_rows, "places": draw_places, "gate": draw_gate}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
