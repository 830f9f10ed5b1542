"""The pictures of this phase's pages, drawn from `drafts.py`'s figures and from runs of the shipped model.

python phase-08-speculative-decoding/pictures.py
"""

from __future__ import annotations

import math

import numpy as np
import runs
from drafts import WITH_HEAD, WITH_POOR_HEAD, rows_of

from course.docs.drawing import Drawing, write_all
from mini_vllm import LLMEngine


def draw_gain() -> Drawing:
    """How many times as fast each person's text comes, against people: a good head, and a poor one."""
    left, right, top, bottom = 62, 456, 34, 250
    d = Drawing("The gain from three draft tokens, against the people on the card", 316)

    def x(people: float) -> float:
        return left + math.log2(people) / 8 * (right - left)

    def y(times: float) -> float:
        return bottom - times / 2.4 * (bottom - top)

    for times in (0, 0.5, 1, 1.5, 2):
        d.path([(left, y(times)), (right, y(times))], "bold" if times == 1 else "thin")
        d.text(left - 8, y(times) + 5, times, "s", "end")
    d.text(12, 20, "times as fast as without drafts", "m")
    for power in range(9):
        d.text(x(2**power), bottom + 20, 2**power, "s", "middle")
    d.text(right, bottom + 42, "people", "m", "end")
    fine = [2 ** (step / 16) for step in range(129)]
    for css, drafting in (("A", WITH_HEAD), ("B", WITH_POOR_HEAD)):
        d.path([(x(p), y(drafting.gain(p))) for p in fine], "bold", 2)
        for power in range(9):
            d.dot(x(2**power), y(drafting.gain(2**power)), css)
    even = WITH_HEAD.breaks_even()
    d.path([(x(even), y(1)), (x(even), bottom)], "dash")
    d.text(x(even) - 4, bottom - 6, even, "A s", "end")
    d.dot(right + 14, 60, "A")
    d.text(right + 26, 65, f"{WITH_HEAD.tokens:.2f} tokens per step", "m")
    d.dot(right + 14, 86, "B")
    d.text(right + 26, 91, f"{WITH_POOR_HEAD.tokens:.2f} tokens per step", "m")
    d.text(left, bottom + 60, "derived from data sheets, without reading the KV cache", "m")
    return d


def draw_verify() -> Drawing:
    """The rows of one step: inputs, what the model says, what was drafted, and what is kept."""
    rows = rows_of("ues")
    d = Drawing("One step with three drafts: four rows go in, three tokens come out", 262)
    left, wide, high = 150, 96, 36
    for name, at in (("goes in", 48), ("the model says", 110), ("was drafted", 158)):
        d.text(left - 14, at + 23, name, "m", "end")
    for i, row in enumerate(rows):
        at = left + i * wide
        d.text(at + wide / 2 - 10, 34, f"row {row.number}", "s", "middle")
        wrong = row.verdict == ""
        d.cell(at, 48, wide - 20, high, show(row.token), "none" if wrong else "A")
        d.arrow(at + wide / 2 - 10, 86, at + wide / 2 - 10, 108)
        colour = {"accepted": "A", "own token": "B", "": "none"}[row.verdict]
        d.cell(at, 110, wide - 20, high, show(row.says), colour)
        if row.drafted:
            d.cell(at, 158, wide - 20, high, show(row.drafted), "none")
        word = {"accepted": "accepted", "own token": "not equal", "": "thrown away"}[row.verdict]
        d.text(at + wide / 2 - 10, 214, word, "s", "middle")
    d.text(left, 246, "what the step yields: u, e, and an n of the model's own", "m")
    return d


def show(token: str) -> str:
    """A letter as it is drawn; a space as the word."""
    return "space" if token == " " else token


def draw_overlap() -> Drawing:
    """p and q of three tokens side by side, and what they have in common."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.7, 0.1])
    d = Drawing("What the model's and the drafter's probabilities have in common", 336)
    left, top, bottom, wide = 60, 40, 220, 150
    tall = (bottom - top) / 0.75

    for share in (0, 0.25, 0.5, 0.75):
        d.path([(left, bottom - share * tall), (left + 3 * wide, bottom - share * tall)], "thin")
        d.text(left - 8, bottom - share * tall + 5, share, "s", "end")
    for i, name in enumerate(("mat", "sofa", "roof")):
        at = left + 22 + i * wide
        both = min(p[i], q[i])
        for place, (share, css) in enumerate(((p[i], "A"), (q[i], "B"))):
            d.box(at + place * 54, bottom - share * tall, 50, share * tall, css)
            d.box(at + place * 54, bottom - both * tall, 50, both * tall, "C", 0)
            letter = "p" if place == 0 else "q"
            d.text(
                at + place * 54 + 25,
                bottom - share * tall - 6,
                f"{letter} {share:.1f}",
                "s",
                "middle",
            )
        d.text(at + 52, bottom + 22, name, "m", "middle")
    legend = (
        ("C", "in both: what is accepted"),
        ("B", "q has more: what is rejected"),
        ("A", "p has more: what is drawn instead"),
    )
    for row, (css, words) in enumerate(legend):
        d.dot(left + 6, bottom + 50 + row * 22, css)
        d.text(left + 18, bottom + 55 + row * 22, words, "m")
    common = float(np.minimum(p, q).sum())
    d.text(
        left + 290,
        bottom + 55,
        f"in common: {' + '.join(f'{m:.1f}' for m in np.minimum(p, q))} = {common:.1f}",
        "m",
    )
    return d


def draw_counter() -> Drawing:
    """Four steps of the run with n-gram lookup: positions computed, and where the counter then stands."""
    d = Drawing(
        "num_computed_tokens runs ahead by all rows and goes back by the rejected ones", 266
    )
    first, left, wide, high = 183, 84, 60, 30
    decode = LLMEngine().tokenizer.decode  # type: ignore[union-attr]

    def x(position: int) -> float:
        return left + (position - first) * wide

    for position in range(first, first + 9):
        d.text(x(position) + wide / 2, 24, position, "s", "middle")
    made = runs.ngram()
    for line, number in enumerate((148, 149, 150, 151)):
        step, before = made.steps[number - 1], made.steps[number - 2].computed
        top = 36 + line * 50
        d.text(12, top + 20, f"step {number}", "m")
        drafts = [show(letter) for letter in decode(list(step.drafts))] if step.drafts else []
        for row in range(step.scheduled):
            kept = before + row < step.computed
            words = drafts[row - 1] if row else "own"
            d.cell(x(before + row), top, wide - 4, high, words, "A" if kept else "none")
        ahead, bottom = x(before + step.scheduled) - 2, top + high + 10
        d.path([(ahead, top - 3), (ahead, bottom)], "bold", 2)
        if step.computed < before + step.scheduled:
            d.arrow(ahead, bottom, x(step.computed) - 2, bottom)
        d.path([(x(step.computed) - 2, bottom - 6), (x(step.computed) - 2, bottom + 4)], "bold", 2)
    d.dot(18, 248, "A")
    d.text(30, 253, "computed; what is white was rejected", "m")
    d.text(330, 253, "thick line: the counter, ahead and back", "m")
    return d


def draw_text() -> Drawing:
    """The guide's text twice, letter by letter: accepted drafts in blue."""
    decode = LLMEngine().tokenizer.decode  # type: ignore[union-attr]
    d = Drawing("Who found each letter: n-gram lookup, and the EAGLE head", 292)
    left, wide, high, columns = 12, 10, 22, 62
    top = 36
    for name, made in (("n-gram lookup", runs.ngram()), ("EAGLE head", runs.head())):
        accepted = made.accepted_tokens
        d.text(
            left,
            top - 12,
            f"{name}: {len(made.steps)} steps, {accepted} drafted letters accepted",
            "m",
        )
        place = 0
        for step in made.steps:
            for i, token in enumerate(step.tokens):
                if place + 1 >= len(made.token_ids):  # the last is EOS, and what came behind it
                    break
                at, row = left + place % columns * wide, top + place // columns * high
                if i < step.accepted:
                    d.box(at, row, wide, high - 3, "A", 0)
                letter = decode([token])
                if letter.strip():
                    css = "m on" if i < step.accepted else "m"
                    d.text(at + wide / 2, row + 15, letter, css, "middle")
                place += 1
        top += high * -(-place // columns) + 52
    d.dot(left + 6, top - 30, "A")
    d.text(left + 18, top - 25, "an accepted draft; all others are the model's own tokens", "m")
    return d


PICTURES = {
    "gain": draw_gain,
    "verify": draw_verify,
    "overlap": draw_overlap,
    "counter": draw_counter,
    "text": draw_text,
}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
