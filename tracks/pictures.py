"""Draw the pictures of `bytes-in-flight.md` and `serving.md`, as SVG.

    python tracks/pictures.py        # writes tracks/pictures/*.svg

They are drawn with `course/docs/drawing.py`: the first from `schedule`, which its page prints, the second
from `captures/dashboard.json`, which `dashboard.py` writes.
"""

from __future__ import annotations

import itertools
import json
import math

from dashboard import CAPTURE, CROWD, PANELS, SECONDS, curve

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


def draw_dashboard() -> Drawing:
    """Six panels of vLLM's dashboard, from a minute of `mini-vllm serve`'s `/metrics`."""
    _, *samples = json.loads(CAPTURE.read_text(encoding="utf-8"))
    wide, high, gap = 256, 110, 312
    d = Drawing("A minute of mini-vllm serve, in six panels of vLLM's dashboard", 556)
    for place, (title, (kind, curves)) in enumerate(PANELS.items()):
        left, top = 48 + place % 2 * gap, 44 + place // 2 * 180
        drawn = {name: curve(samples, kind, *asked) for name, asked in curves.items()}
        most = round_up(max(value for points in drawn.values() for _, value in points))
        d.text(left, top - 24, title, "m")
        for number, (name, css) in enumerate(zip(drawn, ("B", "A"), strict=False)):
            d.box(left + number * 100, top - 15, 10, 8, css)
            d.text(left + number * 100 + 15, top - 7, name, "s")
        begin, end = (left + second / SECONDS * wide for second in CROWD)
        d.box(begin, top, end - begin, high, "none", 0)
        for share in (0, 0.5, 1):
            y = top + high * (1 - share)
            d.path([(left, y), (left + wide, y)], "thin")
            d.text(left - 4, y + 5, f"{most * share:g}", "s", "end")
        for points, css in zip(drawn.values(), ("B", "A"), strict=False):
            line = [(left + t / SECONDS * wide, top + high * (1 - v / most)) for t, v in points]
            for (x1, y1), (x2, y2) in itertools.pairwise(line):
                d.parts.append(segment(x1, y1, x2, y2, css))
        for second in (0, 20, 40, 60):
            d.text(left + second / SECONDS * wide, top + high + 16, f"{second} s", "s", "middle")
    return d


def segment(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """A piece of a curve, as a box as thin as a line: the styles have fills in colour and no strokes."""
    dx, dy = x2 - x1, y2 - y1
    length = max((dx * dx + dy * dy) ** 0.5, 1e-9)
    ox, oy = -dy / length, dx / length
    corners = [(x1 + ox, y1 + oy), (x2 + ox, y2 + oy), (x2 - ox, y2 - oy), (x1 - ox, y1 - oy)]
    shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    return f'<polygon points="{shown}" class="{css}"/>'


def round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 8, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value or 1))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value)


PICTURES = {"pipeline": draw_pipeline, "dashboard": draw_dashboard}

if __name__ == "__main__":
    write_all(__file__, PICTURES)
