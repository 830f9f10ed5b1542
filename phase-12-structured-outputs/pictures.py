"""The pictures of this phase's guide.

python phase-12-structured-outputs/pictures.py
"""

from __future__ import annotations

import math

from desk import PART, VOCABULARY, allowed

from course.docs.drawing import Drawing, write_all

LOGITS = {"K": 2.0, "a": 3.5, "1": 1.5, "X": 1.0, "{": 2.5, "the": 3.0}
"""A step's logits, made up."""


def draw_mask() -> Drawing:
    """Logits, the mask, and what softmax makes of the rest."""
    may = set(allowed(PART, ""))
    d = Drawing("Six logits, a mask that bars four of them, and the probabilities of the rest", 252)
    total = sum(math.exp(logit) for token, logit in LOGITS.items() if token in may)
    for column, title in ((14, "token"), (96, "logit"), (330, "the mask"), (462, "probability")):
        d.text(column, 18, title, "s")
    for i, (token, logit) in enumerate(LOGITS.items()):
        top = 30 + 36 * i
        free = token in may
        d.text(14, top + 19, token, "m")
        d.cell(96, top, 56 * logit, 28, f"{logit}", "A" if free else "none")
        d.text(330, top + 19, "1" if free else "0: −∞", "m")
        if free:
            d.cell(
                462, top, 160 * math.exp(logit) / total, 28, f"{math.exp(logit) / total:.2f}", "A"
            )
        else:
            d.text(462, top + 19, "0", "m")
    return d


def draw_states() -> Drawing:
    """The part number's eight states, and two tokens of several bytes."""
    d = Drawing("The states of a part number, over bytes, and two tokens that cross several", 176)
    bytes_ = ("A-Z", "A-Z", "-", "0-9", "0-9", "0-9", "0-9")
    left = [14 + 80 * i for i in range(8)]
    for i, x in enumerate(left):
        d.cell(x, 84, 38, 34, str(i + 1), "B" if i >= 6 else "none")
    for i, what in enumerate(bytes_):
        d.arrow(left[i] + 41, 101, left[i + 1] - 4, 101)
        d.text(left[i] + 59, 92, what, "s", "middle")
    for token, begin, end in (("KX", 0, 2), ("-1", 2, 4)):
        middle = (left[begin] + left[end]) / 2 + 19
        d.text(middle, 26, f"token {token}", "m", "middle")
        d.arrow(left[begin] + 24, 80, middle, 38)
        d.arrow(middle, 38, left[end] + 14, 80)
    d.text(left[6], 142, "may end here", "s")
    return d


def draw_stack() -> Drawing:
    """What is written, the stack, and who looks how deep."""
    d = Drawing("A stack in the middle of a JSON value, and how far a token looks into it", 196)
    d.text(14, 20, "written so far", "s")
    d.text(14, 48, '{"days": [1', "m")
    d.text(170, 20, "the stack, top first", "s")
    for i, (what, colour) in enumerate(
        (("in a number", "A"), ("in a list", "B"), ("in an object", "C"))
    ):
        d.cell(170, 32 + 46 * i, 150, 38, what, colour)
    d.text(370, 20, "tokens", "s")
    for i, (tokens, verdict) in enumerate(
        (
            ("2   .5   e9", "the top says yes"),
            ('a   {   "', "the top says no"),
            ("]   }   ,   ]}", "look below"),
        )
    ):
        d.text(370, 56 + 46 * i, tokens, "m")
        d.text(500, 56 + 46 * i, verdict, "s")
    return d


def draw_step() -> Drawing:
    """Who works when."""
    d = Drawing("Compile in a thread, fill while the model runs, then apply, sample, accept", 214)
    rows = (("a thread", 30), ("the engine", 84), ("the model", 138))
    for name, top in rows:
        d.text(14, top + 22, name, "s")
    d.cell(120, 30, 176, 34, "compile the rule", "C")
    d.arrow(298, 66, 308, 82)
    d.cell(120, 138, 80, 34, "step", "none")
    d.cell(208, 138, 80, 34, "step", "none")
    d.text(120, 192, "others' steps: the request waits", "s")
    d.cell(276, 84, 82, 34, "schedule", "none")
    d.cell(362, 138, 132, 34, "forward pass", "A")
    d.cell(362, 84, 70, 34, "fill rows", "B")
    d.cell(498, 138, 66, 34, "apply", "B")
    d.cell(568, 138, 70, 34, "sample", "A")
    d.cell(568, 84, 70, 34, "accept", "B")
    d.text(362, 192, "the first step with the bound request", "s")
    return d


def draw_rows() -> Drawing:
    """k + 1 rows for k drafts."""
    d = Drawing("Three drafts, four rows, and back by three", 160)
    written, drafts = "KX-", ("1", "1", "9")
    for i in range(4):
        left = 14 + 156 * i
        text = written + "".join(drafts[:i])
        d.text(left, 20, f"after {text}", "m")
        tokens = [token for token in allowed(PART, text) if token in VOCABULARY]
        d.cell(
            left, 32, 142, 36, "row: " + " ".join(tokens[:3]) + (" …" if tokens[3:] else ""), "B"
        )
        if i < 3:
            d.arrow(left + 116, 82, left + 190, 82)
            d.text(left + 152, 102, f"accept {drafts[i]}", "s", "middle")
    d.arrow(620, 124, 20, 124)
    d.text(320, 148, "roll back 3", "s", "middle")
    return d


PICTURES = {
    "mask": draw_mask,
    "states": draw_states,
    "stack": draw_stack,
    "step": draw_step,
    "rows": draw_rows,
}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
