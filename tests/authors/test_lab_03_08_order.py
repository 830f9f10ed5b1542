"""Lab 03-08: a queue in a policy's order, as the lab gives it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.request_queue import FCFSRequestQueue
from mini_vllm.sampling_params import SamplingParams

LAB = ROOT / "phase-03-scheduler/labs/lab-08-beat-the-scheduler"


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_03_08_starter")


def request(name: str, prompt: int = 20, arrival: float = 0.0, priority: int = 0) -> Request:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    return Request(
        name, [7] * prompt, params, arrival_time=arrival, priority=priority, block_size=16
    )


def queue_of(*requests: Request) -> FCFSRequestQueue:
    queue = FCFSRequestQueue()
    for one in requests:
        queue.add_request(one)
    return queue


def ids(queue: Any) -> list[str]:
    return [one.request_id for one in queue]


def by_prompt(one: Any, now: float) -> Any:
    return one.num_prompt_tokens


def test_the_smallest_key_comes_first(lab: ModuleType) -> None:
    """The queue itself is put in order, from its head on."""
    queue = queue_of(request("a", 30), request("b", 10), request("c", 20))
    lab.reorder(queue, by_prompt, 0.0)
    assert ids(queue) == ["b", "c", "a"], "prompts of 30, 10 and 20 tokens, the shortest first"


def test_a_preempted_one_has_no_place_of_its_own(lab: ModuleType) -> None:
    """The engine puts it in front, and the policy says where it stands."""
    queue = queue_of(request("back again", 30), request("b", 10), request("c", 20))
    first = queue.peek_request()
    first.status, first.num_preemptions = RequestStatus.PREEMPTED, 1
    lab.reorder(queue, by_prompt, 0.0)
    assert ids(queue) == ["b", "c", "back again"], (
        "the longest prompt was preempted and stood in front; by the policy it is the last"
    )


def test_equals_stay_as_they_were(lab: ModuleType) -> None:
    """First come, first served among equals."""
    queue = queue_of(*(request(name, priority=9 - i) for i, name in enumerate("dacb")))
    lab.reorder(queue, lambda one, now: 0, 0.0)
    assert ids(queue) == list("dacb"), "four equal keys: first come, first served among them"


def test_nobody_is_lost_and_nobody_comes_twice(lab: ModuleType) -> None:
    """All who went in come out, in order; and an empty queue is no trouble."""
    names = [f"r{i}" for i in range(300)]
    queue = queue_of(*(request(name, 1 + (7 * i) % 300) for i, name in enumerate(names)))
    lab.reorder(queue, by_prompt, 0.0)
    assert sorted(ids(queue)) == sorted(names), f"of 300 there are {len(queue)}"
    at_work = [by_prompt(one, 0.0) for one in queue]
    assert at_work == sorted(at_work), f"the first prompts are of {at_work[:8]} tokens"
    empty = queue_of()
    lab.reorder(empty, by_prompt, 0.0)
    assert len(empty) == 0, f"nobody waited, and now {ids(empty)} do"


def test_now_is_the_same_for_all(lab: ModuleType) -> None:
    """All keys of a step are taken at one time."""
    seen: list[float] = []
    queue = queue_of(request("a", arrival=1.0), request("b", arrival=2.0))

    def waited(one: Any, now: float) -> Any:
        seen.append(now)
        return now - one.arrival_time

    lab.reorder(queue, waited, 5.0)
    assert set(seen) == {5.0}, f"the policy was asked about {sorted(set(seen))}, and now is 5.0"
    assert ids(queue) == ["b", "a"], "b has waited 3 s, a 4"
