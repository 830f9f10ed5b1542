"""The breakpoint drills of phase 01's exercises, typed into the debugger, on both engines.

What must come out stands here once: the page says that the engines print the same.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from drill_helpers import drills, printed, section

from course.docs.pages import ROOT
from tests.engine.helpers.patience import PATIENCE

PHASE = ROOT / "phase-01-architecture"
PRINTED = {
    "The four moves": ["(4, 0)", "[13, 3]", "[13, 3]", "[1, 0]", "[(13, 13), (3, 30)]"],
    "The victim": ["('dov', 10, 2)", "('PREEMPTED', 0, 11)"],
    "The end": ["('ben', 'RUNNING')", "'FINISHED_LENGTH_CAPPED'"],
}
DRILLS = drills(section(PHASE))


def test_every_drill_is_tried() -> None:
    assert DRILLS.keys() == PRINTED.keys()


@pytest.mark.parametrize("engine", ["", pytest.param("vllm", marks=pytest.mark.vllm)])
@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str, engine: str) -> None:
    assert printed(PHASE / "drill.py", DRILLS[title], *filter(None, [engine])) == PRINTED[title]


@pytest.mark.parametrize("script", sorted(ROOT.glob("phase-*/*drill.py")), ids=lambda p: p.stem)
def test_the_debuggers_q_ends_a_drill_without_a_traceback(script: Path) -> None:
    """Of every phase's."""
    done = subprocess.run(
        [sys.executable, script], input="q\n", capture_output=True, text=True, timeout=PATIENCE,
        cwd=ROOT, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
