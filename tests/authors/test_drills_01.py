"""The breakpoint drills of phase 01's exercises, typed into the debugger, on both engines.

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
PHASE = ROOT / "phase-01-architecture"
PRINTED = {
    "The four moves": ["(4, 0)", "[13, 3]", "[13, 3]", "[1, 0]", "[(13, 13), (3, 30)]"],
    "The victim": ["('dov', 10, 2)", "('PREEMPTED', 0, 11)"],
    "The end": ["('ben', 'RUNNING')", "'FINISHED_LENGTH_CAPPED'"],
}


def drills() -> dict[str, str]:
    """Title -> what to type."""
    section = (PHASE / "EXERCISES.md").read_text("utf-8").split("\n## Breakpoints\n")[1]
    section = section.split("\n## ")[0]
    return dict(re.findall(r"^\*\*\d+\.\*\* ([^.]+)\..*?```text\n(.*?)```", section, re.M | re.S))


def printed(typed: str, *engine: str) -> list[str]:
    """What the debugger's `p` printed, without vLLM's random ends of ids."""
    done = subprocess.run(
        [sys.executable, PHASE / "drill.py", *engine],
        input=typed + "q\n",
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONBREAKPOINT": "pdb.set_trace"},
    )
    lines = [line.split("(Pdb) ")[-1] for line in done.stdout.split("\n") if "(Pdb) " in line]
    values = [re.sub(r"(?<=[a-z])-[0-9a-f]{8}'", "'", line) for line in lines]
    return [value for value in values if re.match(r"[(\[']", value)]


def test_every_drill_is_tried() -> None:
    assert drills().keys() == PRINTED.keys()


@pytest.mark.parametrize("engine", ["", pytest.param("vllm", marks=pytest.mark.vllm)])
@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str, engine: str) -> None:
    assert printed(drills()[title], *filter(None, [engine])) == PRINTED[title]
