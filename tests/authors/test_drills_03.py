"""The breakpoint drills of phase 03's exercises, typed into the debugger, on both engines.

What must come out stands here once: the page says that the engines print the same.
"""

from __future__ import annotations

import pytest
from drill_helpers import drills, printed_each, section, unsolved

from course.docs.pages import ROOT

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
    ],
}
PAGE = section(PHASE)
DRILLS = drills(PAGE)


def test_every_drill_is_tried_and_solved() -> None:
    assert DRILLS.keys() == PRINTED.keys()
    assert not unsolved(PAGE, PRINTED)


@pytest.mark.parametrize("engine", ["", pytest.param("vllm", marks=pytest.mark.vllm)])
@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str, engine: str) -> None:
    each = printed_each(PHASE / "scheduler_drill.py", DRILLS, *filter(None, [engine]))
    assert each[title] == PRINTED[title]
