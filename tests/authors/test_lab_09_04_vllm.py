"""Lab 09-04 beside vLLM: the solution finds vLLM's beams, and the recorded ones are still true."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / "phase-09-sampling/labs/lab-04-beam-search"


@pytest.mark.vllm
def test_the_beams_are_vllms() -> None:
    """28 searches, asked anew: tokens equal, sums to 1e-3."""
    in_vllm = load_module(LAB / "in_vllm.py", "lab_09_04_in_vllm")
    lab = load_module(LAB / "solution.py", "lab_09_04_beside_vllm")
    found = in_vllm.ask_vllm()
    number, differ, apart = in_vllm.compare(lab, found)
    assert (number, differ) == (28, 0)
    assert apart < 1e-3
    recorded = in_vllm.support.recorded()
    for key in ("prompts", "searches"):
        assert found[key] == recorded[key], f"recorded.json was written for other {key}"
    for new, old in zip(found["answers"], recorded["answers"], strict=True):
        said = [[[tokens for tokens, _ in beams] for beams in each] for each in (new, old)]
        assert said[0] == said[1], "recorded.json has other beams"
