"""Lab 07-02: its solution beside vLLM's routers and `CPUFusedMOE`, and the answers that it records."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from course.learner.labs import load_module

ROOT = Path(__file__).resolve().parents[2]
[LAB] = (ROOT / "phase-07-gemm-and-moe" / "labs").glob("lab-02-*")

pytestmark = [pytest.mark.torch, pytest.mark.vllm]


@pytest.fixture(scope="module")
def in_vllm() -> ModuleType:
    return load_module(LAB / "in_vllm.py", "lab_07_02_in_vllm")


@pytest.fixture(scope="module")
def solution() -> ModuleType:
    return load_module(LAB / "solution.py", "lab_07_02_solution")


def test_ten_thousand_rows_go_to_the_experts_that_vllm_chooses(
    in_vllm: ModuleType, solution: ModuleType
) -> None:
    apart = in_vllm.compare_routers(solution, rows=10_000)
    assert {name.split(",")[0] for name in apart} >= {"select_experts", "grouped_topk"}
    assert max(apart.values()) < 2e-5, apart


def test_five_hundred_layers_are_those_of_cpu_fused_moe(
    in_vllm: ModuleType, solution: ModuleType
) -> None:
    assert in_vllm.compare_layers(solution, layers=500) < 2e-5


def test_the_recorded_answers_are_still_given(in_vllm: ModuleType) -> None:
    kept = json.loads((LAB / "answers.json").read_text(encoding="utf-8"))
    said = json.loads(json.dumps(in_vllm.answers()))
    for ours, theirs in zip(kept["layers"], said["layers"], strict=True):
        assert ours["drawn"] == theirs["drawn"]
        for mine, other in zip(ours["says"], theirs["says"], strict=True):
            assert mine == pytest.approx(other, abs=1e-5)
    asked = [{k: v for k, v in one.items() if k != "says"} for one in kept["routers"]]
    for one in asked:
        [theirs] = [
            other for other in said["routers"] if all(other[k] == v for k, v in one.items())
        ]
        [ours] = [
            kept_one
            for kept_one in kept["routers"]
            if all(kept_one[k] == v for k, v in one.items())
        ]
        for mine, other in zip(ours["says"], theirs["says"], strict=True):
            assert mine == pytest.approx(other, abs=1e-5)
