"""The breakpoint drills of phase 04's exercises, typed into the debugger."""

from __future__ import annotations

import pytest
from drill_helpers import drills, printed, section, unsolved

from course.docs.pages import ROOT

PHASE = ROOT / "phase-04-attention-backends"
PRINTED = {
    "The rows": [
        "((1, 4, 32), 40)", "((8, 4, 32), 0)", "((8, 4, 32), 8)", "((4, 4, 32), 16)", "((1, 4, 32), 40)",
    ],
    "The rescale": ["(2, 2, 9)", "[4, 0, 0]"],
}  # fmt: skip
PAGE = section(PHASE)
DRILLS = drills(PAGE)


def test_every_drill_is_tried_and_solved() -> None:
    assert DRILLS.keys() == PRINTED.keys()
    assert not unsolved(PAGE, PRINTED)


@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str) -> None:
    assert printed(PHASE / "attention_drill.py", DRILLS[title]) == PRINTED[title]
