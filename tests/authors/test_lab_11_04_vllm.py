"""Lab 11-04 beside real vLLM: the recording, fresh traces and workloads, the scenes, a fault of the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.thorough import either

LAB = Path(__file__).resolve().parents[2] / "phase-11-multi-lora/labs/lab-04-slots-and-admission"
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def in_vllm() -> Any:
    return load_module(LAB / "in_vllm.py", "lab_11_04_in_vllm")


@pytest.fixture(scope="module")
def solution() -> Any:
    return load_module(LAB / "solution.py", "lab_11_04_solution_vllm")


def test_what_was_recorded_is_what_it_does(in_vllm: Any) -> None:
    assert in_vllm.record() == in_vllm.support.RECORDED.read_text("utf-8")


def test_fresh_traces(in_vllm: Any, solution: Any) -> None:
    """Loads, fills, slots and memory after each of forty operations."""
    assert not in_vllm.differing_traces(solution, 2000, either(60, 600))


def test_fresh_workloads(in_vllm: Any, solution: Any) -> None:
    """All that `Decision` has, in each step."""
    assert not in_vllm.differing_workloads(solution, 2000, either(24, 500))


def test_too_many_adapters_in_a_step(in_vllm: Any) -> None:
    """RuntimeError, and nothing is loaded."""
    loads: list[int] = []
    manager = in_vllm.VllmManager(2, 3, loads.append, lambda index, adapter: None)
    with pytest.raises(RuntimeError, match="greater than the number of GPU LoRA slots"):
        manager.set_active_adapters([1, 2, 3])
    assert (loads, manager.lora_index_to_id, manager.list_adapters()) == ([], [None, None], [])


def test_the_scenes(in_vllm: Any, solution: Any) -> None:
    """vLLM's scheduler runs the README's queues as the predictions say."""
    support, said = in_vllm.support, solution.predictions()
    for name, places in (("first step", 8), ("four places", 4)):
        work = support.scene(support.QUEUE, places)
        first = next(support.decide(work, in_vllm.make_parts(work, 2)))
        assert sorted(int(i.split("-")[0]) for i in first.admitted) == said[name]
    work = support.scene(support.STREAM)
    steps = list(support.decide(work, in_vllm.make_parts(work, 2)))
    starts = {i: number for number, step in enumerate(steps, 1) for i in step.admitted}
    assert (starts["3-cy"], starts["4-noor"]) == said["skip"]


def test_the_gate_forgets_what_is_in_flight(in_vllm: Any) -> None:
    """With two schedules in flight, as in a pipeline, more adapters run than there are slots, and an
    assertion ends the engine. A failure here means that vLLM has mended it, as 0.33.0 has."""
    work = in_vllm.support.scene([("ada", 1, 8), ("bo", 1, 8)])
    work["config"]["max_num_batched_tokens"] = 16
    work["requests"][1]["prompt"] = [7] * 60
    parts = in_vllm.make_parts(work, 1)
    ada, bo = (parts.make_request(arrival, i) for i, arrival in enumerate(work["requests"]))
    parts.scheduler.add_request(ada)
    first = parts.scheduler.schedule()
    parts.scheduler.add_request(bo)
    assert set(parts.scheduler.schedule().num_scheduled_tokens) == {"2-bo"}  # Ada's is in flight
    parts.scheduler.update_from_output(first, parts.make_output(["1-ada"], [[9]]))
    with pytest.raises(AssertionError):
        parts.scheduler.schedule()
