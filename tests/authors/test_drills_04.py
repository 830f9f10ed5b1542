"""The breakpoint drills of phase 04's exercises, typed into the debugger."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PHASE = ROOT / "phase-04-attention-backends"
PRINTED = {
    "The rows": [
        "((1, 4, 32), 40)", "((8, 4, 32), 0)", "((8, 4, 32), 8)", "((4, 4, 32), 16)", "((1, 4, 32), 40)",
    ],
    "The diagonal": ["((2, 16, 8), [7, 7, 6, 6, 5, 5])", "((2, 16, 16), [7, 7, 6, 6, 5, 5])"],
    "The rescale": ["(2, 2, 9)", "[4, 0, 0]"],
}  # fmt: skip
PAGE = (PHASE / "EXERCISES.md").read_text("utf-8").split("\n## Breakpoints\n")[1].split("\n## ")[0]


def drills() -> dict[str, str]:
    """Title -> what to type."""
    return dict(re.findall(r"^\*\*\d+\.\*\* ([^.]+)\..*?```text\n(.*?)```", PAGE, re.M | re.S))


def test_every_drill_is_tried_and_solved() -> None:
    assert drills().keys() == PRINTED.keys()
    for lines in PRINTED.values():
        assert all(f"`{line}`" in PAGE for line in lines)


@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str) -> None:
    done = subprocess.run(
        [sys.executable, PHASE / "attention_drill.py"],
        input=drills()[title] + "q\n",
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONBREAKPOINT": "pdb.set_trace"},
    )
    lines = [line.split("(Pdb) ")[-1] for line in done.stdout.split("\n") if "(Pdb) " in line]
    assert [line for line in lines if re.match(r"[(\[]", line)] == PRINTED[title]
