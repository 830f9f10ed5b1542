"""The breakpoint drills of phase 05's exercises, typed into the debugger."""

from __future__ import annotations

import pytest
from drill_helpers import drills, printed, section, unsolved

from course.docs.pages import ROOT

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
PAGE = section(PHASE)
DRILLS = drills(PAGE)


def test_every_drill_is_tried_and_solved() -> None:
    assert DRILLS.keys() == PRINTED.keys()
    assert not unsolved(PAGE, PRINTED)


@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str) -> None:
    assert printed(PHASE / "graph_drill.py", DRILLS[title]) == PRINTED[title]
