"""Given: every pair of requests under `auto`, by your rules, beside what real vLLM did.

python show.py [solution | starter]
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_12_04_support")
LETTERS = {"served": ".", "refused": "r", "empty": "e", "dead": "X"}


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_12_04_{which}")
    pairs = {tuple(names): found for names, found in support.runs("auto") if len(names) == 2}
    names = list(dict.fromkeys(first for first, _ in pairs))
    print(
        "The second request: . served, r refused, e empty, X the engine dies; x it was dead before."
    )
    print("A row for each first request; the second ones stand in the same order.\n")
    counted: Counter[str] = Counter()
    apart = 0
    for first in names:
        cells = []
        for second in names:
            mine = lab.predict("auto", [support.rule_of(lab, name) for name in (first, second)])
            letter = "x" if mine[0] == "dead" else LETTERS[mine[1]]
            same = list(mine) == pairs[first, second]
            apart += not same
            counted[letter] += 1
            cells.append(letter if same else "?")
        print(f"{first:8} {''.join(cells)}")
    print(
        f"\n{len(pairs)} pairs: {counted['X'] + counted['x']} end the engine, {counted['e']} give an empty "
        f"answer; {apart} go otherwise in real vLLM{' (?)' if apart else ''}."
    )


if __name__ == "__main__":
    main(*sys.argv[1:2])
