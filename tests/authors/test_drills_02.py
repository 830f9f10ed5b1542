"""The breakpoint drills of phase 02's exercises, typed into the debugger, on both engines.

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
PHASE = ROOT / "phase-02-paged-attention"
PRINTED = {
    "The hit": ["([1, 2], [1, 1])", "[2, 2]"],
    "Publishing": ["('ada', 0, 2)", "(0, [None, None, None])", "('cy', 0, 2)"],
    "The end of one, the memory of another": ["[8, 9]", "[8, 9, 7, 6, 5]", "([6], 1)"],
}
PAGE = (PHASE / "EXERCISES.md").read_text("utf-8").split("\n## Breakpoints\n")[1].split("\n## ")[0]


def drills() -> dict[str, str]:
    """Title -> what to type."""
    return dict(re.findall(r"^\*\*\d+\.\*\* ([^.]+)\..*?```text\n(.*?)```", PAGE, re.M | re.S))


def printed(typed: str, *engine: str) -> list[str]:
    """What the debugger's `p` printed."""
    done = subprocess.run(
        [sys.executable, PHASE / "pool_drill.py", *engine],
        input=typed + "q\n",
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONBREAKPOINT": "pdb.set_trace"},
    )
    lines = [line.split("(Pdb) ")[-1] for line in done.stdout.split("\n") if "(Pdb) " in line]
    return [line for line in lines if re.match(r"[(\[]", line)]


def test_every_drill_is_tried_and_solved() -> None:
    assert drills().keys() == PRINTED.keys()
    for lines in PRINTED.values():
        assert all(f"`{line}`" in PAGE for line in lines)


@pytest.mark.parametrize("engine", ["", pytest.param("vllm", marks=pytest.mark.vllm)])
@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str, engine: str) -> None:
    assert printed(drills()[title], *filter(None, [engine])) == PRINTED[title]
