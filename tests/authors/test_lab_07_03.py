"""Lab 07-03: its solution's assignments beside those of vLLM's `_prepare_expert_assignment`."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.learner.labs import load_module

ROOT = Path(__file__).resolve().parents[2]
[LAB] = (ROOT / "phase-07-gemm-and-moe" / "labs").glob("lab-03-*")


@pytest.mark.torch
@pytest.mark.vllm
def test_two_thousand_batches_are_assigned_as_vllm_assigns_them() -> None:
    in_vllm = load_module(LAB / "in_vllm.py", "lab_07_03_in_vllm")
    solution = load_module(LAB / "solution.py", "lab_07_03_solution")
    assert not in_vllm.compare(solution, 2000)
    wrong = load_module(LAB / "solution.py", "lab_07_03_wrong")
    wrong.longest_list = lambda pairs, experts, block: pairs + experts * (block - 1)
    assert in_vllm.compare(wrong, 200), "a room for every expert would pass"
