"""Lab 10-01 beside vLLM: what was recorded is still what its ranks say, and the page's numbers are in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / "phase-10-parallelism/labs/lab-01-shard-a-llama"


@pytest.mark.vllm
def test_ranks_in_vllm() -> None:
    """Tokens and calls on one, two and four ranks."""
    in_vllm = load_module(LAB / "in_vllm.py", "lab_10_01_in_vllm")
    served = {one["size"]: one for one in in_vllm.serve_all()}
    assert served == in_vllm.load_support().recorded(), "recorded.json is not what vLLM says"


def test_the_numbers_of_the_page() -> None:
    """At two ranks: 216 sums of 354,816 bytes, 24 gathers."""
    support = load_module(LAB / "support.py", "lab_10_01_support_of_the_page")
    ledger = support.recorded()[2]["ledger"]
    reduced = [(nbytes, n) for kind, _, nbytes, n in ledger if kind == "all_reduce"]
    assert (sum(n for _, n in reduced), sum(b * n for b, n in reduced)) == (216, 354_816)
    assert [(s, n) for kind, s, _, n in ledger if kind != "all_reduce"] == [([2, 160], 24)]
