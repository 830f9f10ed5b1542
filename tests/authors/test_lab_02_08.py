"""Lab 02-08: the committed incident against what it is said to be, and against real vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module
from course.parity.decisions import mini_parts
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

ROOT = Path(__file__).resolve().parents[2]
LABS = ROOT / "phase-02-paged-attention" / "labs"
LAB = LABS / "lab-08-incident-the-request-that-never-ran"


def read(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "trace.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_the_stand_in_takes_the_recorded_decisions() -> None:
    """`support.Engine` is the pin's rule: it schedules the incident as vLLM did, step by step."""
    support = load_module(LAB / "support.py", "lab_02_08_support_for_trace")
    engine = support.Engine(32, 16, 512)
    records = read(LAB / "incident")
    for record in records:
        if "arrives" in record:
            engine.add_request(*record["arrives"].values())
        if "leaves" in record:
            engine.drop(record["leaves"])
        scheduler = engine.parts.scheduler
        for _ in range(record["step"], record.get("until", record["step"]) + 1):
            decided: list[Any] = []
            schedule = scheduler.schedule
            scheduler.schedule = lambda s=schedule, d=decided: d.append(s()) or d[-1]
            engine.step()
            scheduler.schedule = schedule
            plan = dict(decided[0].num_scheduled_tokens) if decided else {}
            assert plan == record["scheduled"], record["step"]
        assert [r.request_id for r in scheduler.running] == record["running"], record["step"]
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        assert free == record["free_blocks"], record["step"]
    assert records[-1]["until"] == 339


def test_the_readme_quotes_the_log() -> None:
    log = (LAB / "incident" / "server.log").read_text(encoding="utf-8")
    readme = (LAB / "README.md").read_text(encoding="utf-8")
    said = [line.split("] ", 1)[1] for line in log.splitlines() if "] " in line][2:]
    assert len(said) == 10
    for line in said:
        assert line in readme, line


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        call(*args, **kwargs)
    except ValueError:
        return True
    return False


def test_mini_vllm_refuses_what_the_mend_refuses() -> None:
    """The engine's own answer is the lab's `admit`."""
    solution = load_module(LAB / "solution.py", "lab_02_08_solution_for_engine")
    support = load_module(LAB / "support.py", "lab_02_08_support_for_engine")
    for blocks, size, length in ((8, 4, 32), (3, 5, 14)):
        parts = mini_parts(support.config(blocks, size, length))
        engine = {"num_gpu_blocks": blocks, "block_size": size, "max_model_len": length}
        for prompt in range(1, length):
            for most in (1, 2, 3, 7, 50):
                arrival: Any = {
                    "id": f"{prompt} {most}",
                    "prompt": [5] * prompt,
                    "max_tokens": most,
                }
                request = parts.make_request({**arrival, "ignore_eos": True, "priority": 0}, 0)
                by_engine = refused(parts.scheduler.add_request, request)
                by_lab = refused(solution.admit, prompt, most, **engine)
                assert by_engine == by_lab, (engine, prompt, most)


@pytest.mark.vllm
def test_real_vllm_still_hangs() -> None:
    """The solution's test fails on vLLM's own scheduler."""
    said = output_of(LAB / "against_vllm.py")
    assert "vLLM 0.22.1: your test fails, as it should" in said
    [block] = [
        b
        for b in (LAB / "README.md").read_text(encoding="utf-8").split("```")
        if b.startswith("text\nvLLM 0.22.1")
    ]
    assert block.removeprefix("text\n") in said


@pytest.mark.vllm
def test_the_incident_happens_again(tmp_path: Path) -> None:
    """Recorded anew, it is the committed trace, line for line."""
    output_of(LAB / "capture.py", "--out", tmp_path, "--pause", "0")
    assert read(tmp_path) == read(LAB / "incident")
