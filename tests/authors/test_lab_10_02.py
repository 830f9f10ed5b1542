"""Lab 10-02: what it was fed with is what the engine says now, and what vLLM said."""

from __future__ import annotations

import json
from pathlib import Path

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / "phase-10-parallelism/labs/lab-02-what-a-sum-costs"


def test_the_ledger_is_still_the_engines() -> None:
    """216 sums of 354,816 bytes and 24 gathers: real vLLM's, as tests/engine/parity has it."""
    support = load_module(LAB / "support.py", "lab_10_02_support")
    assert support.measure() == json.loads(support.MEASURED.read_text(encoding="utf-8"))
    ranks, ledger = support.measured()
    sums = {key: n for key, n in ledger.items() if key[0] == "all_reduce"}
    assert (ranks, sum(sums.values())) == (2, 216)
    assert sum(nbytes * n for (_, _, nbytes), n in sums.items()) == 354_816
    assert ledger["all_gather", (2, 160), 1280] == 24
