"""The breakpoint drills of phase 06's exercises, typed into the debugger."""

from __future__ import annotations

import pytest
from drill_helpers import drills, printed, section, unsolved

from course.docs.pages import ROOT

PHASE = ROOT / "phase-06-quantization"
PRINTED = {
    "The word": [
        "(['model.layers.0.self_attn.q_proj', 'model.layers.0.self_attn.k_proj', "
        "'model.layers.0.self_attn.v_proj'], (3, 128), (256, 16), (256, 4))",
        "['0xa6a567a8', [8, 10, 7, 6, 5, 10, 6, 10]]",
        "[36.102, 23.712, 27.939, 38.33]",
        "[0.0, 0.072, -0.036, -0.072, -0.108, 0.072, -0.072, 0.072]",
    ],
    "The slot": [
        "((8, 16, 2, 2, 32), 'uint8', (1.0, 1.0), [16, 17, 18])",
        "[-1.089, 0.471, 0.603, -0.13]",
        "[185, 47, 50, 160]",
        "[-1.125, 0.469, 0.625, -0.125]",
    ],
}
PAGE = section(PHASE)
DRILLS = drills(PAGE)


def test_every_drill_is_tried_and_solved() -> None:
    assert DRILLS.keys() == PRINTED.keys()
    assert not unsolved(PAGE, PRINTED)


@pytest.mark.parametrize("title", PRINTED)
def test_a_drill_prints_what_its_solution_says(title: str) -> None:
    script = PHASE / "quant_drill.py"
    assert printed(script, DRILLS[title]) == PRINTED[title]
