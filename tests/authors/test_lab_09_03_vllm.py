"""Lab 09-03 beside vLLM: what was recorded is still what it answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / "phase-09-sampling/labs/lab-03-parallel-sampling"


@pytest.mark.vllm
def test_parallel_sampling_in_vllm() -> None:
    """Tokens, cached tokens and the first step of each case, and `mini_vllm`'s."""
    in_vllm = load_module(LAB / "in_vllm.py", "lab_09_03_in_vllm")
    support = in_vllm.support
    played = in_vllm.play_all(in_vllm.cases())
    assert played == support.recorded(), "recorded.json is not what vLLM says"
    for one in played:
        ours = support.play(tuple(one["case"].items()))
        theirs = support.Played(one["tokens"], one["cached"], one["first_step"])
        assert ours == theirs, one["case"]
