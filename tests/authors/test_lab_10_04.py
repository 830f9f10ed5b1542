"""Lab 10-04 on processes: what its stages on paper do, the engine's own pipeline does, with the rule, too."""

from __future__ import annotations

from pathlib import Path

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / (
    "phase-10-parallelism/labs/lab-04-the-half-empty-pipeline"
)


def test_processes_schedule_as_the_stages_on_paper() -> None:
    """Schedules and tokens of two processes, without the rule and with it."""
    support = load_module(LAB / "support.py", "lab_10_04_support_test")
    lab = load_module(LAB / "solution.py", "lab_10_04_solution_test")
    for name in ("four", "four unequal"):
        work = support.WORKLOADS[name]
        for spread in (False, True):
            paper = support.play(lab, work, spread=spread)
            real = support.play_on_processes(work, lab.hold_back if spread else None)
            assert real.pattern() == paper.pattern(), f"{name}, with the rule: {spread}"
            assert real.tokens == paper.tokens


def test_the_rule_stays_above_the_bound() -> None:
    """No recorded workload takes fewer ticks with the rule than the lab's lower bound says."""
    support = load_module(LAB / "support.py", "lab_10_04_support_bound")
    lab = load_module(LAB / "solution.py", "lab_10_04_solution_bound")
    for name, work in support.WORKLOADS.items():
        ticks = support.play(lab, work, "per token", spread=True).ticks
        assert ticks >= lab.lower_bound(work.lengths(), work.stages), name
