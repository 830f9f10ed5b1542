"""Given: two prompts on one, two and four ranks: what the ranks say, and how far their logits are from one's.

python show.py [solution | starter]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_10_01_support")


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_10_01_{which}")
    theirs = support.recorded()
    one = support.play(lab, 1).logits[0]
    print(
        "ranks  all-reduces    bytes  gathers  of        tokens   ranks' bits  from one rank's logits"
    )
    for size in sorted(theirs):
        played = support.play(lab, size)
        ledger = played.ledgers[0]
        reduced = {call: n for call, n in ledger.items() if call[0] == "all_reduce"}
        gathered = {call[1]: n for call, n in ledger.items() if call[0] == "all_gather"}
        shapes = " ".join(str(list(shape)) for shape in gathered)
        tokens = "vLLM's" if played.tokens == theirs[size]["tokens"] else "other"
        bits = all(np.array_equal(logits, played.logits[0]) for logits in played.logits)
        print(
            f"{size:5}  {sum(reduced.values()):11}{sum(call[2] * n for call, n in reduced.items()):9,}"
            f"{sum(gathered.values()):9}  {shapes:10}{tokens:9}{'equal' if bits else 'differ':13}"
            f"{np.abs(played.logits[0] - one).max():.0e}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:2])
