"""Lab 08-01 beside vLLM: the solution drafts what vLLM drafts, and the recorded answers are still true."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.learner.labs import load_module

LAB = (
    Path(__file__).resolve().parents[2] / "phase-08-speculative-decoding/labs/lab-01-ngram-proposer"
)


@pytest.mark.vllm
def test_vllm_drafts_the_same() -> None:
    """2,000 random texts, among them those that answers.json has recorded."""
    lab = load_module(LAB / "solution.py", "lab_08_01_beside_vllm")
    in_vllm = load_module(LAB / "in_vllm.py", "lab_08_01_in_vllm")
    drafting, differ = in_vllm.compare(lab, 2000)
    assert drafting > 1000, "vLLM drafts for most of them"
    assert not differ
    for case, recorded in in_vllm.support.recorded():
        assert in_vllm.vllm_draft(case) == recorded, case
