"""Lab 12-04 beside real vLLM: every recorded pair again, and a dead engine in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module

LAB = (
    Path(__file__).resolve().parents[2]
    / "phase-12-structured-outputs/labs/lab-04-the-poisoned-engine"
)
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def in_vllm() -> Any:
    return load_module(LAB / "in_vllm.py", "lab_12_04_in_vllm")


@pytest.fixture(scope="module")
def found(in_vllm: Any) -> Any:
    """All engines, started from one process that has imported vLLM."""
    return json.loads(in_vllm.record())


def test_checks_and_compilers(in_vllm: Any, found: Any) -> None:
    """What each backend alone makes of each rule."""
    assert found["rules"] == json.loads((LAB / "recorded.json").read_text("utf-8"))["rules"]


def test_every_run(in_vllm: Any, found: Any) -> None:
    """Outcomes, texts and errors of all pairs."""
    recorded = json.loads((LAB / "recorded.json").read_text("utf-8"))["runs"]
    for mine, theirs in zip(found["runs"], recorded, strict=True):
        assert mine == theirs


def test_the_predictions(found: Any) -> None:
    """Each of them is an outcome of a real engine."""
    said = load_module(LAB / "solution.py", "lab_12_04_solution_vllm").predictions()
    outcomes = {(run["setting"], *run["requests"]): tuple(run["outcomes"]) for run in found["runs"]}
    for pair in ("part, name", "name, part", "name, not 7", "labels, kind"):
        assert outcomes[("auto", *pair.split(", "))] == said[pair]
    assert outcomes["auto", "set", "name", "part", "not 7"][:3] == said["set, name, part"]
    assert outcomes["xgrammar", "part", "name"] == said["named"]
    alone = {
        run["requests"][0]
        for run in found["runs"]
        if run["setting"] == "auto" and run["outcomes"][0] == "dead"
    }
    assert sorted(alone) == said["alone"]


def test_an_engine_in_its_own_process_dies(in_vllm: Any) -> None:
    """As a server has it: the free request after the pair meets an EngineDeadError, too."""
    jobs = [("auto", "part", "name", "part")]
    [answer] = in_vllm.run(jobs, "--beside", VLLM_ENABLE_V1_MULTIPROCESSING="1")
    assert answer["outcomes"] == ["served", "dead", "dead"]
    assert all("EngineDeadError" in error for error in answer["errors"][1:])
