"""The breakpoint drills of phase 03's exercises, typed into the debugger, on both engines.

What must come out stands here once: the page says that the engines print the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PHASE = ROOT / "phase-03-scheduler"
PRINTED = {
    "The head start": [
        "(4, 44, 48, True)",
        "(1, 0, 49, False)",
        "(2, 48, 50, True)",
        "(None,)",
    ],
    "The victim": [
        "('gil', 49, 50)",
        "(['eve', 'fay'], ['hal'])",
        "('PREEMPTED', 0, 50)",
        "(['eve', 'fay'], ['gil', 'hal'])",
        "('gil', 52, 53)",
        "(['eve'], ['hal'])",
    ],
    "Nobody passes": [
        "('eve', 'WAITING')",
        "('fay', 'WAITING')",
        "('gil', 'WAITING')",
        "('gil', 'PREEMPTED')",
        "('hal', 'WAITING')",
    ],
}
PAGE = (PHASE / "EXERCISES.md").read_text("utf-8").split("\n## Breakpoints\n")[1].split("\n## ")[0]


def drills() -> dict[str, str]:
    """Title -> what to type."""
    return dict(re.findall(r"^\*\*\d+\.\*\* ([^.]+)\..*?```text\n(.*?)```", PAGE, re.M | re.S))


def printed(typed: str, *engine: str) -> list[str]:
    """What the debugger's `p` printed."""
    done = subprocess.run(
        [sys.executable, PHASE / "scheduler_drill.py", *engine],
        input=typed + "q\n",
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONBREAKPOINT": "pdb.set_trace"},
    )
    lines = [line.split("(Pdb) ")[-1] for line in done.stdout.split("\n") if "(Pdb) " in line]
    return [line for line in lines if line.startswith("(")]


def test_every_drill_is_tried_and_solved() -> None:
    assert drills().keys() == PRINTED.keys()
    for lines in PRINTED.values():
        assert all(f"`{line}`" in PAGE for line in lines)


@pytest.mark.parametrize("engine", ["", pytest.param("vllm", marks=pytest.mark.vllm)])
@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str, engine: str) -> None:
    assert printed(drills()[title], *filter(None, [engine])) == PRINTED[title]
