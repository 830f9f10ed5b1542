"""Lab 09-05 in real vLLM: the solution's file says there what each request's own V0 processor says."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / "phase-09-sampling/labs/lab-05-a-processor-for-a-batch"


@pytest.mark.vllm
def test_the_same_file_runs_in_vllm() -> None:
    """24 requests in a small pool: none is wrong. Wrapped in vLLM's adapter, the V0 processor is."""
    in_both = load_module(LAB / "in_both.py", "lab_09_05_in_both")
    asked = in_both.support.make_requests(24)
    expected = in_both.support.expected_answers(asked)
    interface = importlib.import_module("vllm.v1.sample.logits_processor")
    lab = load_module(LAB / "solution.py", "lab_09_05_beside_vllm")
    assert issubclass(lab.SayAfter, interface.LogitsProcessor), "the class is vLLM's"
    preempted, wrong = in_both.compare("vllm", lab.SayAfter, False, asked, expected)
    assert preempted > 0, "nobody was preempted: the pool is too big for this test"
    assert wrong == 0
    wrapped = in_both.support.wrapped_v0(interface)
    _, wrong = in_both.compare("vllm", wrapped, False, asked, expected)
    assert wrong > 0, "README.md says that the adapter forgets who is preempted"
