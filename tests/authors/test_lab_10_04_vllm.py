"""Lab 10-04 beside vLLM on two stages: what was recorded is still what it does, and the rule splits there."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / (
    "phase-10-parallelism/labs/lab-04-the-half-empty-pipeline"
)


@pytest.mark.vllm
def test_the_half_empty_pipeline_in_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules and tokens without the rule are those recorded, and with it those of the lab."""
    in_vllm = load_module(LAB / "in_vllm.py", "lab_10_04_in_vllm")
    support = in_vllm.support
    lab = load_module(LAB / "solution.py", "lab_10_04_solution_vllm")
    usual = support.WORKLOADS["four"]
    works = {
        name: work
        for name, work in support.WORKLOADS.items()
        if in_vllm.server(work) == in_vllm.server(usual)
    }
    recorded = support.recorded()
    for name, played in in_vllm.play_all(works).items():
        assert played.pattern() == recorded[name]["schedules"], name
        assert played.tokens == recorded[name]["tokens"], name
    monkeypatch.setenv("LAB_IMPL", "solution")
    for name, played in in_vllm.play_all(works, spread=True).items():
        ours = support.play(lab, works[name], spread=True)
        assert (played.pattern(), played.tokens) == (ours.pattern(), ours.tokens), name
