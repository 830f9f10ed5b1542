"""The breakpoint drills of phase 08's exercises, typed into the debugger."""

from __future__ import annotations

import pytest
from drill_helpers import drills, printed, section, unsolved

from course.docs.pages import ROOT

PHASE = ROOT / "phase-08-speculative-decoding"
PRINTED = {
    "The judge": [
        "([125, 109, 123], [3], (3, 264))",
        "([125, 109, 118], [124])",
        "([True, True, False], [2], [[125, 109, 118, -1]])",
    ],
    "The count": [
        "(['eve'], [[125, 109, 123]])",
        "(3, 2, 185, 188)",
        "(185, 187)",
        "(['eve'], [[123, 40, 122]])",
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
    assert printed(PHASE / "spec_drill.py", DRILLS[title]) == PRINTED[title]
