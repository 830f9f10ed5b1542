"""The pictures of this phase's pages. The pipeline's is drawn from schedules of the engine.

python phase-10-parallelism/pictures.py
"""

from __future__ import annotations

from split import holds, list_schedules

from course.docs.drawing import Drawing, write_all

PROMPT = "Once upon a time"
COLOURS = "AB"


def draw_layer() -> Drawing:
    """An MLP cut over two ranks: column, then row."""
    d = Drawing("An MLP on two ranks: columns, then rows, then one sum", 250)
    for rank, colour in enumerate(COLOURS):
        top = 24 + 110 * rank
        d.text(12, top + 42, f"rank {rank}", "m")
        d.cell(76, top + 20, 72, 36, "x", "none")
        d.text(112, top + 74, "all of it", "s", "middle")
        d.arrow(152, top + 38, 178, top + 38)
        d.cell(182, top, 96, 34, "gate", colour)
        d.cell(182, top + 42, 96, 34, "up", colour)
        d.text(230, top + 94, "half of the outputs", "s", "middle")
        d.arrow(282, top + 38, 308, top + 38)
        d.cell(312, top + 20, 84, 36, "SiLU · up", "none")
        d.arrow(400, top + 38, 426, top + 38)
        d.cell(430, top + 20, 72, 36, "down", colour)
        d.text(452, top + 74, "half of the inputs", "s", "middle")
        d.arrow(506, top + 38, 548, 108 if rank == 0 else 158)
    d.cell(544, 114, 84, 40, "+", "none")
    d.text(586, 174, "all-reduce", "s", "middle")
    return d


def draw_pipeline() -> Drawing:
    """Which requests are in which of two stages, tick by tick, for two orders of arrival."""
    d = Drawing("A pipeline of two stages, with three requests at once and with two in turn", 250)
    runs = (
        ("three at the same moment", list_schedules([PROMPT] * 3, 6)),
        ("two, one step apart", list_schedules([PROMPT] * 2, 6, staggered=True)),
    )
    for line, (name, schedules) in enumerate(runs):
        top = 26 + 118 * line
        d.text(16, top, name, "m")
        for stage in (0, 1):
            y = top + 12 + 38 * stage
            d.text(16, y + 22, f"stage {stage}", "s")
            for tick in range(9):
                sent = tick - stage
                reqs = schedules[sent] if sent >= 0 else []
                fill = COLOURS[line and reqs[0]] if reqs else "none"
                d.cell(76 + 61 * tick, y, 56, 32, _name(reqs), fill)
    return d


def _name(reqs: list[int]) -> str:
    return f"{reqs[0]}–{reqs[-1]}" if len(reqs) > 1 else "".join(map(str, reqs))


def draw_ranks() -> Drawing:
    """Eight ranks, TP 4 and PP 2."""
    d = Drawing("Eight ranks: four in each of two stages", 232)
    for rank in range(8):
        stage, place = divmod(rank, 4)
        left, top = 112 + 128 * place, 44 + 76 * stage
        d.cell(left, top, 116, 48, f"rank {rank}", COLOURS[stage])
        held = holds(rank, tp=4, pp=2)
        if not place:
            d.text(14, top + 20, f"stage {stage}", "m")
            d.text(14, top + 40, f"layers {held['layers']}".replace(" to ", "–"), "s")
        if not stage:
            d.text(left + 58, 30, f"TP rank {place}", "m", "middle")
            for i, kind in enumerate(("query heads", "KV heads")):
                words = f"{kind} {held[kind]}".replace(" to ", "–").replace("query ", "")
                d.text(left + 58, 186 + 20 * i, words, "s", "middle")
            d.arrow(left + 58, 94, left + 58, 118)
    return d


PICTURES = {"layer": draw_layer, "pipeline": draw_pipeline, "ranks": draw_ranks}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
