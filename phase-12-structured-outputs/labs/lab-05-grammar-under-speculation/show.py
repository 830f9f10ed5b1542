"""Given: the rows of a step, what drafts cost and save, and the order of the steps, by your functions.

python show.py [solution | starter]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_12_05_support")
parts = support.parts


def show_rows(lab: Any, text: str, drafts: str) -> None:
    """What each place of a request may hold."""
    grammar = parts.part_number(text)
    kept = lab.place_drafts(grammar, parts.CHARACTERS.read(drafts), len(drafts))
    bitmask = np.zeros((len(drafts) + 1, 2), dtype=np.int32)
    lab.fill_rows(grammar, kept, bitmask, 0)
    fills = grammar.counter.counts.fills
    print(
        f"after {text}, drafts {drafts}: {parts.CHARACTERS.spell(kept)}; {fills} rows filled by the grammar"
    )
    for place, row in enumerate(bitmask):
        bits = np.unpackbits(row.view(np.uint8), count=len(parts.CHARACTERS), bitorder="little")
        allowed = "".join(parts.CHARACTERS.pieces[t] for t in np.flatnonzero(bits))
        print(f"  row {place}  {'everything' if (row == -1).all() else allowed}")


def show_counts(lab: Any) -> None:
    """The 1,000 grammars with synchronous scheduling, without drafts and with them."""
    print("\n1,000 grammars, synchronous   steps  rows filled  tokens  drafts kept")
    for name, none in (("without drafts", True), ("with drafts", False)):
        steps, total = 0, dict[str, int]()
        for seed, jobs in support.random_batches():
            if none:
                answer = support.run_sync(lab, jobs, parts.TableModel(), lambda *_: [], 4)
            else:
                answer = support.run("sync", lab, seed, jobs)
            steps += answer.num_steps
            support.add(total, answer.counts)
        tokens, kept = total["accept: tokens taken"], total["filter: tokens taken"]
        print(f"{name:26}{steps:9}{total['fills']:13}{tokens:8}{kept:13}")


def show_order(lab: Any) -> None:
    """A batch with a bound request, whose prompt takes three steps, and a free one."""
    jobs = [parts.Job([1], None, 5), parts.Job([1], None, 3, chunks=3)]
    jobs[1].make_grammar = lambda: parts.part_number().grammar
    for job in jobs:
        job.answer = parts.plain_run(job, parts.CharacterModel())
    answer = support.run_async(lab, jobs, parts.CharacterModel(), lambda number, tokens: [3, 3], 2)
    print("\na free request, and a bound one whose prompt takes three steps")
    for n in range(answer.num_steps):
        print(
            "  "
            + ", ".join(
                e for e in answer.events if e in (f"execute {n}", f"sample {n}", f"update {n - 1}")
            )
        )


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_12_05_{which}")
    show_rows(lab, "KX-11", "90.9")
    show_counts(lab)
    show_order(lab)


if __name__ == "__main__":
    main(*sys.argv[1:2])
