"""The breakpoint drills of phase 02's exercises, typed into the debugger, on both engines.

What must come out stands here once: the page says that the engines print the same.
"""

from __future__ import annotations

import pytest
from drill_helpers import drills, printed_each, section, unsolved

from course.docs.pages import ROOT

PHASE = ROOT / "phase-02-paged-attention"
PRINTED = {
    "The hit": ["([1, 2], [1, 1])", "[2, 2]"],
    "Publishing": ["('ada', 0, 2)", "(0, [None, None, None])", "('cy', 0, 2)"],
    "The end of one, the memory of another": ["[8, 9]", "[8, 9, 7, 6, 5]", "([6], 1)"],
}
PAGE = section(PHASE)
DRILLS = drills(PAGE)


def test_every_drill_is_tried_and_solved() -> None:
    assert DRILLS.keys() == PRINTED.keys()
    assert not unsolved(PAGE, PRINTED)


@pytest.mark.parametrize("engine", ["", pytest.param("vllm", marks=pytest.mark.vllm)])
@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str, engine: str) -> None:
    each = printed_each(PHASE / "pool_drill.py", DRILLS, *filter(None, [engine]))
    assert each[title] == PRINTED[title]
