"""Lab 09-01 beside vLLM: the solution's stages and order are its own, and the recorded answers still true."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / "phase-09-sampling/labs/lab-01-the-order-of-stages"


@pytest.mark.vllm
def test_vllm_leaves_and_samples_the_same() -> None:
    """300 rows a stage and 300 batches through `Sampler.forward`."""
    lab = load_module(LAB / "solution.py", "lab_09_01_beside_vllm")
    in_vllm = load_module(LAB / "in_vllm.py", "lab_09_01_in_vllm")
    vllm = in_vllm.Vllm()
    differ = in_vllm.compare(lab, vllm, rows=300, batches=300)
    assert len(differ) == 9, "eight stages and the whole"
    assert not +differ, f"cases in which the lab's solution differs from vLLM: {dict(+differ)}"
    assert in_vllm.record(vllm) == in_vllm.support.recorded(), "answers.json is not what vLLM says"
