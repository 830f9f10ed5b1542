"""Lab 07-06: what the README shows is what show.py prints, and what it says of greedy packing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-07-gemm-and-moe" / "labs" / "lab-06-expert-load-balance"


def test_the_readme_shows_what_show_prints() -> None:
    """The table of the page, line by line; the counts are committed, so it is the same everywhere."""
    run = subprocess.run(
        [sys.executable, str(LAB / "show.py")], cwd=ROOT, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    page = (LAB / "README.md").read_text(encoding="utf-8")
    assert run.stdout.strip() in page
