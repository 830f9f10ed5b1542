"""Given: what the trace says, what the engine says with each key, and what a mend costs.

python show.py [solution | starter]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_11_05_support")


def found_in_traces(lab: Any) -> None:
    """The requests that your audit names in three of vLLM's runs, and how much they read."""
    for name in ("reload", "forced", "in place"):
        found = lab.audit(support.rows_of(support.recorded()[name]), support.BLOCK_SIZE)
        words = ", ".join(f"{request} {unsound}" for request, (_, unsound) in found.items())
        print(f"{name:10}{words}")


def said(lab: Any) -> None:
    """Ada's answers after her reload."""
    print(f"\n{'':9} {'the name as key':29} your key")
    runs = [support.play("reload", key) for key in (support.by_name, support.by_lab(lab))]
    for request in ("ada 2", "ada 3"):
        texts = [support.decode(run["answers"][request]).split("<eos>")[0] for run in runs]
        print(f"{request:9} {texts[0]:29} {texts[1].rstrip()}")


def costs(lab: Any) -> None:
    """Your bills where Ada and Cy have requests under way, and whether the engine pays the same."""
    print("\nof Ada, Cy and the base model  blocks  tokens  steps")
    for mend in ("key", "reset"):
        tenants, paid = support.measure(lab, "two under way", mend)
        mine = lab.bill(tenants, "ada", mend)
        blocks, tokens = (" ".join(map(str, of.values())) for of in (mine.blocks, mine.tokens))
        agrees = "" if mine == paid else f"  the engine: {paid}"
        print(f"{mend:30} {blocks:7} {tokens:7} {mine.steps:5}{agrees}")


def main(which: str = "starter") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_11_05_{which}")
    found_in_traces(lab)
    said(lab)
    costs(lab)


if __name__ == "__main__":
    main(*sys.argv[1:2])
