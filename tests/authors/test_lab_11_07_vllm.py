"""Lab 11-07 beside vLLM: what was recorded is still what its server does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module

LAB = Path(__file__).resolve().parents[2] / "phase-11-multi-lora/labs/lab-07-serve-tenants"


def without_times(notes: list[Any]) -> list[Any]:
    """A sample's value is a time, and which samples there are in the middle of a call depends on it."""
    return [{key: value for key, value in note.items() if key != "metrics"} for note in notes]


@pytest.mark.vllm
def test_the_morning_and_the_week_in_vllm(tmp_path: Path) -> None:
    """Statuses, answers and reads of each call, the metric, and the reads with the solution's plan."""
    lab = tmp_path / "lab"
    lab.mkdir()
    for name in ("in_vllm.py", "support.py", "solution.py"):
        (lab / name).write_text((LAB / name).read_text(encoding="utf-8"), encoding="utf-8")
    root = str(LAB.parents[2])
    run = subprocess.run(
        [sys.executable, "in_vllm.py", "--record"], cwd=lab, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    got = json.loads((lab / "recorded.json").read_text(encoding="utf-8"))
    support = load_module(LAB / "support.py", "lab_11_07_support")
    solution = load_module(LAB / "solution.py", "lab_11_07_solution")
    recorded = support.recorded()
    assert without_times(got["morning"]) == without_times(recorded["morning"])
    assert got["week"] == recorded["week"]
    plan = solution.plan_touches(support.WEEK, support.CAPACITY)
    assert got["week"] == support.count_reads(support.WEEK, plan, support.CAPACITY)
    notes = support.by_call(got["morning"])
    assert solution.adapters_with_requests(notes["h"]["metrics"]) == ["cy"]
    assert solution.adapters_with_requests(notes["end"]["metrics"]) == []


def test_mini_vllm_answers_as_vllm_did_but_for_the_adapter_in_place() -> None:
    """Texts, statuses and cached tokens of the morning; reads outside steps only."""
    pytest.importorskip("fastapi")
    support = load_module(LAB / "support.py", "lab_11_07_support")
    theirs, ours = (
        support.by_call(m) for m in (support.recorded()["morning"], support.play_here())
    )
    for name in "efghi":
        for key in ("choices", "usage", "model"):
            assert ours[name]["answer"][key] == theirs[name]["answer"][key], (name, key)
    assert ours["k"]["answer"]["usage"]["prompt_tokens_details"] is None
    assert ours["m"]["answer"] == theirs["m"]["answer"]
    assert [note["status"] for note in ours.values()] == [
        note["status"] for note in theirs.values()
    ]
    assert all(read["step"] is None for note in ours.values() for read in note["reads"])
