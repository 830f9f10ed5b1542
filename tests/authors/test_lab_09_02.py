"""What lab 09-02's page says of one situation that finds every fault."""

from __future__ import annotations

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-09-sampling" / "labs" / "lab-02-seeds-and-neighbours"


def test_one_situation_finds_all_six_faults() -> None:
    """And a right sampler passes it."""
    lab = load_module(LAB / "solution.py", "lab_09_02_solution")
    support = load_module(LAB / "support.py", "lab_09_02_support")
    said = "Situation((7, None), 16, 10)"
    assert f"One alone can find all six: `{said}`" in (LAB / "README.md").read_text("utf-8")
    situation = lab.Situation((7, None), 16, 10)
    for name, fault in support.FAULTS.items():
        assert lab.changed_by(support.player(lab, fault), [situation]), name
    assert not lab.changed_by(support.player(lab, support.Right), [situation])
