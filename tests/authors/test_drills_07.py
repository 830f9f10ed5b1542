"""The breakpoint drills of phase 07's exercises, typed into the debugger."""

from __future__ import annotations

import pytest
from drill_helpers import drills, printed, section, unsolved

from course.docs.pages import ROOT

PHASE = ROOT / "phase-07-gemm-and-moe"
PRINTED = {
    "The choice": [
        "((4, 8), 2, True)",
        "[-0.6, 0.08, 0.39, 0.05, 0.04, 0.15, 0.12, 0.12]",
        "([[0.56, 0.44], [0.57, 0.43], [0.51, 0.49], [0.57, 0.43]], [[2, 5], [2, 5], [7, 5], [5, 6]])",
    ],
    "The order": [
        "([0, 2, 1, 3, 5, 6, 7, 4], [0, 0, 2, 2, 2, 6, 7, 8])",
        "([0, 1, 0, 1, 2, 3, 3, 2], (8, 128), (8, 256))",
        "[[1, 6], [1, 6], [2, 7], [7, 1]]",
    ],
}
PAGE = section(PHASE)
DRILLS = drills(PAGE)


def test_every_drill_is_tried_and_solved() -> None:
    assert DRILLS.keys() == PRINTED.keys()
    assert not unsolved(PAGE, PRINTED)


@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str) -> None:
    assert printed(PHASE / "moe_drill.py", DRILLS[title]) == PRINTED[title]
