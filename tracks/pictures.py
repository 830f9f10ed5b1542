"""Draw the picture of `bytes-in-flight.md`, as SVG.

    python tracks/pictures.py        # writes tracks/pictures/*.svg

It is drawn with `course/docs/drawing.py`, from `schedule`, which the page prints.
"""

from __future__ import annotations

from course.docs.drawing import Drawing, write_all

LATENCY, WORK, TILES = 4, 1, 8


def schedule(
    stages: int, latency: int = LATENCY, work: int = WORK, tiles: int = TILES
) -> list[tuple[int, int]]:
    """(time at which tile i is asked for, time at which its arithmetic begins), for each tile."""
    asked: list[int] = []
    begun: list[int] = []
    for i in range(tiles):
        ahead = i - max(stages - 1, 1)  # the tile whose arithmetic lets this one be asked for
        free = begun[ahead] + (work if stages == 1 else 0) if ahead >= 0 else 0
        asked.append(free)
        begun.append(max(free + latency, begun[-1] + work if begun else 0))
    return list(zip(asked, begun, strict=True))


def draw_pipeline() -> Drawing:
    """Tiles on the way and arithmetic, for 1, 3 and 5 stages."""
    left, unit, row = 20, 15, 9
    d = Drawing("Loads and arithmetic of eight tiles, with 1, 3 and 5 stages", 396)
    base = 0
    for stages in (1, 3, 5):
        plan = schedule(stages)
        end = plan[-1][1] + WORK
        d.text(left, base + 22, f"{stages} stage{'s' * (stages > 1)}: {end} units of time")
        top = base + 32
        for i, (asked, begun) in enumerate(plan):
            d.box(left + asked * unit, top + i * row, LATENCY * unit, row - 3, "A")
            d.box(left + begun * unit, top + TILES * row + 4, WORK * unit - 2, 14, "B")
        base += 124
    d.box(left, 380, 12, 8, "A")
    d.text(left + 18, 388, "a tile on its way", "m")
    d.box(left + 150, 377, 12, 14, "B")
    d.text(left + 168, 388, "its arithmetic", "m")
    return d


PICTURES = {"pipeline": draw_pipeline}

if __name__ == "__main__":
    write_all(__file__, PICTURES)
