"""Lab 10-05 beside vLLM: its groups, its stages, and what its workers hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.thorough import either

LAB = Path(__file__).resolve().parents[2] / "phase-10-parallelism/labs/lab-05-which-rank-holds-what"


@pytest.mark.vllm
def test_groups_and_stages_in_vllm() -> None:
    """The solution's, for each split of up to 16 ranks (64: by the engine's own test, and by hand)."""
    in_vllm = load_module(LAB / "in_vllm.py", "lab_10_05_in_vllm")
    lab = load_module(LAB / "solution.py", "lab_10_05_solution")
    for tried, wrong in (in_vllm.count_groups(lab, 16), in_vllm.count_stages(lab)):
        assert tried > 500
        assert not wrong


@pytest.mark.vllm
@pytest.mark.parametrize("number", either([3], list(range(7))))
def test_workers_in_vllm(number: int) -> None:
    """What was recorded is still what they keep."""
    record = load_module(LAB / "record.py", "lab_10_05_record")
    lines = json.loads(record.support.RECORDED.read_text("utf-8"))["servers"]
    assert record.record_all(record.SERVERS[number : number + 1]) == [lines[number]]
