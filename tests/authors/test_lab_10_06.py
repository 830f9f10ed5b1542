"""Lab 10-06: the recorded plans are those that its tests ask for, and the simulator still says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / "phase-10-parallelism" / "labs" / "lab-06-plan-a-fleet"
support = load_module(LAB / "support.py", "authors_lab_10_06_support")


def test_each_plan_is_recorded() -> None:
    """Each scene's plan, and all that is compared with it: no test of the learner's simulates anything."""
    lab = load_module(LAB / "solution.py", "authors_lab_10_06_solution")
    wanted = set()
    for name in support.SCENES:
        (tp, pp, _), replicas, *_ = lab.cheapest(*support.asked(lab, name))
        rivals = support.cheaper(name, tp * pp * replicas)
        wanted |= {"{}: {} x {} x {}".format(name, *one) for one in ((tp, pp, replicas), *rivals)}
    assert wanted == set(support.recorded())


@pytest.mark.parametrize(
    ("scene", "tp", "pp", "replicas"),
    [
        ("8B, in a hurry", 2, 1, 1),
        ("8B on L4", 2, 1, 1),
        ("70B on three cards", 1, 3, 1),
        ("405B", 8, 2, 1),
    ],
)
def test_the_simulator_says_so(scene: str, tp: int, pp: int, replicas: int) -> None:
    """Run again, the plan gives the recorded figures."""
    found = support.recorded()[f"{scene}: {tp} x {pp} x {replicas}"]
    assert list(support.run(scene, tp, pp, replicas)) == pytest.approx(found, rel=1e-3)
