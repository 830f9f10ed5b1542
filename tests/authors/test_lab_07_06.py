"""Lab 07-06: what the README shows is what show.py prints, and what it says of greedy packing."""

from __future__ import annotations

import subprocess
import sys

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-07-gemm-and-moe" / "labs" / "lab-06-expert-load-balance"


def test_nearly_every_sum_chooses_one_expert() -> None:
    """Layer 3, expert 6: 49 % of the choices, so packed on four GPUs its own has twice the mean."""
    support = load_module(LAB / "support.py", "test_lab_07_06_support")
    lab = load_module(LAB / "solution.py", "test_lab_07_06_solution")
    load = support.routing()["sums"][3].sum(axis=0)
    assert round(load[6] / load.sum(), 2) == 0.49
    packed = lab.imbalance(load, lab.rebalance(load, 8, 4), 4)
    assert 1.95 < packed < 2.05, packed


def test_the_readme_shows_what_show_prints() -> None:
    """The table of the page, line by line; the counts are committed, so it is the same everywhere."""
    run = subprocess.run(
        [sys.executable, str(LAB / "show.py")], cwd=ROOT, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    page = (LAB / "README.md").read_text(encoding="utf-8")
    assert run.stdout in page
