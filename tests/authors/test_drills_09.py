"""The breakpoint drills of phase 09's exercises, typed into the debugger."""

from __future__ import annotations

import pytest
from drill_helpers import drills, printed, section, unsolved

from course.docs.pages import ROOT

PHASE = ROOT / "phase-09-sampling"
PRINTED = {
    "The draw": ["[113, 113]", "((2, 264), [264, 17], [1])", "[113, 123]"],
    "The rows": [
        "([], [0, 1], [])",
        "[None]",
        "([], [], [(1, 0, <MoveDirectionality.UNIDIRECTIONAL: 1>)])",
    ],
}
PAGE = section(PHASE)
DRILLS = drills(PAGE)


def test_every_drill_is_tried_and_solved() -> None:
    """The page has these drills, and its solutions show what they print."""
    assert DRILLS.keys() == PRINTED.keys()
    assert not unsolved(PAGE, PRINTED)


@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str) -> None:
    """Typed in at the script's breakpoint."""
    assert printed(PHASE / "sampling_drill.py", DRILLS[title]) == PRINTED[title]
