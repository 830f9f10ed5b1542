"""Given: the tiny Llama under Bo's rules, by your rows.

    python show.py [solution | starter]

It has never seen a part number. Greedy; the prompt stands in support.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_12_01_support")


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_12_01_{which}")
    tiny = support.tiny()
    mask = support.make_mask(lab, support.PART, tiny)
    answer = support.generate(mask)
    print(f"{support.PART}: {answer.text}\n\nallowed  forced  written")
    for token, row in zip(answer.tokens, answer.rows, strict=True):
        said = "the end token" if token == tiny.stop else tiny.tokens[token].decode()
        print(
            f"{len(support.allowed(row)):7}  {'yes' if lab.forced(row) is not None else '':6}  {said}"
        )
    print("\nrule                     states  rows  forced  answer")
    for rule in (support.KIND, support.PART, support.SHELF, "(é|è)+", "[^a-z]+"):
        mask = support.make_mask(lab, rule, tiny)
        answer = support.generate(mask)
        states = reachable(mask)
        rows = {mask.row(state).tobytes() for state in states}
        share = sum(lab.forced(row) is not None for row in answer.rows)
        text = answer.text if len(answer.text) < 20 else answer.text[:20] + "…"
        print(f"{rule:24} {len(states):6} {len(rows):5}  {share:2} of {len(answer.rows):2}  {text}")


def reachable(mask: Any) -> set[Any]:
    """All states that tokens lead to."""
    found = {mask.start}
    pending = [mask.start]
    while pending:
        state = pending.pop()
        for token in support.allowed(mask.row(state)):
            after = mask.advance(state, token)
            if after is not None and after not in found:
                found.add(after)
                pending.append(after)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:2])
