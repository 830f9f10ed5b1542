"""The pictures of this phase's pages, drawn from `draws.py`: the shipped model's row after "Why ".

python phase-09-sampling/pictures.py
"""

from __future__ import annotations

import math

import draws
from draws import after, min_p, row, temperature, top_k, top_p

from course.docs.drawing import Drawing, write_all
from mini_vllm.sample import ops
from mini_vllm.sample.gumbel import gumbel_noise

LETTERS = "idatmcswf"


def _probs(logits: draws.Row) -> dict[str, float]:
    probs = ops.softmax(logits[None])[0]
    return {c: float(probs[draws.token(c)]) for c in LETTERS}


def draw_knobs() -> Drawing:
    """The likeliest letters after "Why " under six settings."""
    d = Drawing("What temperature, top-k, top-p and min-p do to one distribution", 416)
    panels = (
        ("temperature 0.5", (temperature(0.5),)),
        ("temperature 1: unchanged", ()),
        ("temperature 2", (temperature(2.0),)),
        ("top_k 3", (top_k(3),)),
        ("top_p 0.8", (top_p(0.8),)),
        ("min_p 0.1", (min_p(0.1),)),
    )
    wide, high, tall = 208, 206, 130
    for i, (name, stages) in enumerate(panels):
        left, top = 16 + i % 3 * wide, 14 + i // 3 * high
        logits = after(row(), *stages)
        d.text(left, top + 10, name, "m")
        bottom = top + 20 + tall
        for j, (c, p) in enumerate(_probs(logits).items()):
            at = left + j * 21
            if p >= 5e-4:
                d.box(at, bottom - p / 0.56 * tall, 17, p / 0.56 * tall, "A" if i == 1 else "B", 0)
            d.text(at + 8.5, bottom + 16, c, "s", "middle")
        d.path([(left - 2, bottom), (left + 188, bottom)], "thin")
        can = draws.count(row(), *stages)
        d.text(left, bottom + 34, f"{can} tokens can be drawn", "s")
    return d


def draw_order() -> Drawing:
    """min_p 0.2 and top_p 0.8 in both orders, with the probabilities that each works on."""
    d = Drawing("The same two knobs keep different letters in different orders", 206)
    cuts = {"min_p 0.2": min_p(0.2), "top_p 0.8": top_p(0.8)}
    for line, (name, order) in enumerate(
        (("vLLM's order", ("min_p 0.2", "top_p 0.8")), ("other order", ("top_p 0.8", "min_p 0.2")))
    ):
        top, logits = 34 + line * 108, row()
        d.text(12, top + 26, name, "m")
        for column, cut in enumerate(("", *order)):
            left = 118 + column * 178
            if cut:
                logits = cuts[cut](logits)
                d.arrow(left - 32, top + 21, left - 8, top + 21)
                d.text(left, top - 8, f"after {cut}", "s")
            else:
                d.text(left, top - 8, "probabilities", "s")
            for j, (c, p) in enumerate(list(_probs(logits).items())[:5]):
                d.cell(left + j * 28, top, 26, 30, c, "A" if p > 0 else "none")
                d.text(
                    left + j * 28 + 13, top + 48, f".{p * 100:02.0f}" if p else "", "s", "middle"
                )
    return d


def draw_race() -> Drawing:
    """When each letter arrives, in three races; the axis is logarithmic."""
    d = Drawing("Three races: each letter arrives at time noise / probability", 272)
    left, right = 92, 622
    letters = LETTERS[:7]
    probs = _probs(row())

    def x(arrives: float) -> float:
        return left + (math.log10(arrives) + 1.2) / 3.4 * (right - left)

    for line, seed in enumerate((0, 5, 7)):
        y, drawn = 58 + line * 68, draws.noise(seed)
        d.text(12, y + 5, f"seed {seed}", "m")
        d.path([(left, y), (right, y)], "thin")
        arrivals = {c: float(drawn[draws.token(c)]) / probs[c] for c in letters}
        first = draws.by_quotient(row(), seed)
        assert first == min(arrivals, key=lambda c: arrivals[c]), seed
        last_x, up = -99.0, 0
        for c, arrives in sorted(arrivals.items(), key=lambda pair: pair[1]):
            at = x(min(arrives, 10**2.1))
            up = 1 - up if at - last_x < 20 else 0
            last_x = at
            d.dot(at, y, "A" if c == first else "B")
            d.text(at, y - 12 - up * 16, c, "m" if c != first else "A", "middle")
    for power in (-1, 0, 1, 2):
        d.text(x(10**power), 232, f"{10.0**power:g}", "s", "middle")
    d.text(right, 258, "arrival: noise / p", "m", "end")
    d.dot(left + 6, 254, "A")
    d.text(left + 18, 259, "the winner is drawn", "m")
    return d


def draw_rows() -> Drawing:
    """A batch over three steps: rows that come, go and move, and what a processor hears of it."""
    d = Drawing("A batch of three rows: one leaves, the last takes its place, another comes", 226)
    steps = (
        ("step 1", ("Ada", "Bo", "Cy"), "added: 0, 1, 2"),
        ("step 2", ("Ada", "Bo", "Cy"), "None"),
        ("Ada has finished", ("Cy", "Bo"), "moved: 2 to 0"),
        ("Bo goes, Eve comes", ("Cy", "Eve"), "added: 1"),
    )
    colours = {"Ada": "A", "Bo": "B", "Cy": "C", "Eve": "D"}
    for column, (name, rows, heard) in enumerate(steps):
        left = 52 + column * 148
        d.text(left, 26, name, "s")
        for i in range(3):
            who = rows[i] if i < len(rows) else ""
            d.cell(left, 40 + i * 42, 112, 36, who, colours.get(who, "none"))
            if column == 0:
                d.text(40, 63 + i * 42, i, "s", "end")
        d.text(left, 190, "processor hears", "s")
        d.text(left, 208, heard, "m")
    return d


def draw_sources() -> Drawing:
    """Where the noise of three tokens comes from: out of a stream one after the other, or of a hash each."""
    d = Drawing("V1 takes noise from a stream, V2 computes it from seed, position and token", 296)
    left, wide, gap = 138, 146, 20
    for top, name in ((14, "V1: a stream"), (168, "V2: a hash")):
        d.text(12, top + 18, name, "m")
    for i in range(3):
        at = left + i * (wide + gap)
        d.text(at + wide / 2, 20, ("first", "second", "third")[i] + " token", "s", "middle")
        drawn = [f"{number:.2f}" for number in draws.noise(7, skip=i)[:3]]
        hashed = [f"{number:.2f}" for number in gumbel_noise(7, 4 + i, [0, 1, 2])]
        for j in range(3):
            d.cell(at + j * 48, 34, 46, 30, drawn[j], "A")
            d.cell(at + j * 48, 226, 46, 30, hashed[j], "B")
        if i < 2:
            d.arrow(at + wide, 49, at + wide + gap - 2, 49)
        d.cell(at, 164, 142, 30, f"7, {4 + i}, token id", "none")
        d.arrow(at + 71, 196, at + 71, 222)
    d.text(12, 54, "seed 7", "m")
    d.path([(left, 84), (left + 3 * wide + 2 * gap - 4, 84)], "thin")
    d.text(left, 106, "Each set begins where the last one ended, so the state is kept with", "s")
    d.text(left, 124, "the request, and set back when a set was drawn for nothing.", "s")
    d.text(left, 282, "Each number stands alone: there is no state.", "s")
    return d


PICTURES = {
    "knobs": draw_knobs, "order": draw_order, "race": draw_race, "rows": draw_rows, "sources": draw_sources,
}  # fmt: skip


if __name__ == "__main__":
    write_all(__file__, PICTURES)
