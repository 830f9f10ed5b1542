"""The breakpoint drills of phase 05's exercises, typed into the debugger."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PHASE = ROOT / "phase-05-cuda-graphs"
PRINTED = {
    "The table": ["('PIECEWISE', 8, None, False)", "('FULL', 4, 4, True)", "('FULL', 4, 4, True)"],
    "The padding": [
        "([38, 54, 69, -1], [7, 7, 6, 0], [0, 1, 2, 3, 3])", "([2, 3, 4, 0], [123, 123, 109, 124])",
    ],
    "The launches": [
        "('kv_cache_update', 1, 8)", "('attention', 2, 8)", "('kv_cache_update', 4, 8)", "(13, 5)", "(14, 6)",
    ],
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
        [sys.executable, PHASE / "graph_drill.py"],
        input=drills()[title] + "q\n",
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONBREAKPOINT": "pdb.set_trace"},
    )
    lines = [line.split("(Pdb) ")[-1] for line in done.stdout.split("\n") if "(Pdb) " in line]
    assert [line for line in lines if re.match(r"[(\[]", line)] == PRINTED[title]
