"""Labs 01-01 and 01-02: what both share, the committed capture, and the real vLLM live.

    LAB_IMPL=starter pytest -m vllm tests/engine/test_lab_01_02_vllm.py

runs a learner's own watching, parsing and comparing on a real vLLM. Without LAB_IMPL the reference does.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module

LABS = Path(__file__).resolve().parents[2] / "phase-01-architecture" / "labs"
FIRST, SECOND = LABS / "lab-01-trace-a-request", LABS / "lab-02-read-the-real-loop"
CHOICE = os.environ.get("LAB_IMPL", "").strip() or "solution"


@pytest.fixture(scope="module")
def capture() -> ModuleType:
    return load_module(SECOND / "capture.py", "lab_01_02_capture")


@pytest.fixture(scope="module")
def lab(capture: ModuleType) -> ModuleType:
    module: ModuleType = capture.load_lab(CHOICE)
    return module


def blind(events: list[Any]) -> list[Any]:
    return [e._replace(new_token_ids=len(e.new_token_ids)) for e in events]


def test_both_labs_have_the_same_event() -> None:
    """Event stands in four files, with the same fields."""
    fields = set()
    for path in (f / name for f in (FIRST, SECOND) for name in ("starter.py", "solution.py")):
        (event,) = (
            node
            for node in ast.parse(path.read_bytes()).body
            if isinstance(node, ast.ClassDef) and node.name == "Event"
        )
        lines = [ast.unparse(item) for item in event.body if isinstance(item, ast.AnnAssign)]
        fields.add("\n".join(lines))
    assert len(fields) == 1, fields


def test_the_capture_is_of_this_workload(capture: ModuleType) -> None:
    """It says how it was made, and its requests are those of workload.json."""
    made, records = capture.engines.read_capture()
    assert made.keys() == {"command", "date", "hardware", "versions"}
    assert made["command"] == capture.COMMAND
    assert made["versions"]["vllm"] == "0.22.1"
    arrived = [r for r in records if r["call"] == "add_request"]
    requests = capture.engines.load_workload()["requests"]
    wanted = [(r["request_id"], len(r["prompt"].encode()) + 1) for r in requests]
    assert [(r["request_id"][:-9], r["num_tokens"]) for r in arrived] == wanted, (
        f"record again: {capture.COMMAND}"
    )


def test_the_capture_names_no_place() -> None:
    """Neither folders nor addresses of the machine it was made on."""
    for path in (SECOND / "capture").iterdir():
        text = path.read_text(encoding="utf-8")
        for word in (str(Path.home()), str(LABS.parent.parent), "/tmp/", "127.0.0.1"):
            assert word not in text, (path.name, word)


@pytest.mark.vllm
def test_the_real_loop_live(capture: ModuleType, lab: ModuleType) -> None:
    """vLLM on the shipped checkpoint: 68 events and every token as mini_vllm; the log; the capture."""
    _, records, log = capture.in_process(CHOICE)
    theirs = lab.to_events(records)
    ours = lab.to_events(capture.engines.run_mini_vllm(lab, capture.engines.load_workload()))
    assert lab.first_difference(theirs, ours) is None
    assert theirs == ours
    assert len(theirs) == 68
    assert lab.parse_iterations(log) == lab.iterations_of(theirs)
    startup = lab.parse_startup(log)
    assert (startup.num_kv_cache_tokens, startup.max_concurrency) == (144, 1.5)
    assert startup.async_scheduling is False
    captured = lab.to_events(capture.engines.read_capture()[1])
    assert blind(captured) == blind(theirs), f"record again: {capture.COMMAND}"


@pytest.mark.vllm
def test_the_busy_loop_live(capture: ModuleType, lab: ModuleType) -> None:
    """With the core in a process of its own: four steps for four tokens, and an empty one."""
    said = lab.parse_iterations(capture.busy_loop(CHOICE))
    assert said == lab.parse_iterations(capture.engines.read_log("busy_loop"))
    assert tuple(said[-1]) == (4, 0, 0, 0, 0)
