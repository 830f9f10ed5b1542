"""The waiting queues: order, peek and pop, going back to the front, leaving from the middle."""

from __future__ import annotations

import random

import pytest

from mini_vllm.core.request import Request
from mini_vllm.core.sched.request_queue import (
    FCFSRequestQueue,
    PriorityRequestQueue,
    RequestQueue,
    SchedulingPolicy,
    create_request_queue,
)
from mini_vllm.sampling_params import SamplingParams


def request(request_id: str, priority: int = 0, arrival_time: float = 0.0) -> Request:
    params = SamplingParams(max_tokens=4)
    return Request(request_id, [1], params, arrival_time=arrival_time, priority=priority)


def ids(queue: RequestQueue) -> list[str]:
    return [r.request_id for r in queue]


def drain(queue: RequestQueue) -> list[str]:
    order = []
    while len(queue):
        head = queue.peek_request()
        assert queue.pop_request() is head
        order.append(head.request_id)
    return order


BOTH = pytest.mark.parametrize("make", [FCFSRequestQueue, PriorityRequestQueue])


def test_policy_names_choose_the_queue() -> None:
    assert isinstance(create_request_queue(SchedulingPolicy("fcfs")), FCFSRequestQueue)
    assert isinstance(create_request_queue(SchedulingPolicy("priority")), PriorityRequestQueue)


def test_fcfs_ignores_priority_and_arrival_time() -> None:
    queue = FCFSRequestQueue()
    for r in (request("a", 5, 2.0), request("b", 0, 9.0), request("c", 1, 1.0)):
        queue.add_request(r)
    assert ids(queue) == drain(queue) == ["a", "b", "c"]


def test_fcfs_prepended_requests_go_to_the_front_the_last_one_first() -> None:
    queue = FCFSRequestQueue()
    queue.add_request(request("a"))
    queue.prepend_request(request("b"))
    queue.prepend_request(request("c"))
    assert drain(queue) == ["c", "b", "a"]


def test_priority_orders_by_priority_then_arrival_then_id() -> None:
    queue = PriorityRequestQueue()
    for r in (
        request("late", 1, 2.0),
        request("urgent", 0, 3.0),
        request("z", 1, 1.0),
        request("y", 1, 1.0),
        request("background", 7, 0.0),
    ):
        queue.add_request(r)
    order = ["urgent", "y", "z", "late", "background"]
    assert ids(queue) == order
    assert drain(queue) == order


def test_priority_prepend_is_a_plain_push_there_is_no_front() -> None:
    queue = PriorityRequestQueue()
    queue.add_request(request("a", 0))
    queue.prepend_request(request("b", 5))
    assert drain(queue) == ["a", "b"]


@BOTH
def test_a_request_leaves_from_the_middle(make: type) -> None:
    queue = make()
    requests = [request(str(i), arrival_time=float(i)) for i in range(5)]
    for r in requests:
        queue.add_request(r)
    queue.remove_request(requests[2])
    assert len(queue) == 4
    queue.remove_request(requests[0])
    assert queue.peek_request() is requests[1]
    queue.remove_request(requests[4])
    assert ids(queue) == drain(queue) == ["1", "3"]


@BOTH
def test_removing_the_last_one_leaves_a_usable_queue(make: type) -> None:
    queue = make()
    only = request("a")
    queue.add_request(only)
    queue.remove_request(only)
    assert len(queue) == 0
    assert ids(queue) == []
    queue.add_request(request("b"))
    assert drain(queue) == ["b"]


@BOTH
def test_a_used_id_comes_back_as_another_request(make: type) -> None:
    """Aborted while it waits and sent again under the same id: the old one must not be served."""
    queue = make()
    old, new = request("x", priority=0), request("x", priority=3, arrival_time=5.0)
    queue.add_request(request("keeps it alive", priority=9, arrival_time=6.0))
    queue.add_request(old)
    queue.remove_request(old)
    queue.add_request(new)
    assert len(queue) == 2
    popped = [queue.pop_request(), queue.pop_request()]
    assert new in popped
    assert old not in popped


@BOTH
def test_a_request_may_leave_and_come_back_itself(make: type) -> None:
    queue = make()
    a, b = request("a"), request("b", arrival_time=1.0)
    queue.add_request(a)
    queue.add_request(b)
    for _ in range(3):
        queue.remove_request(a)
        queue.add_request(a)
    assert len(queue) == 2
    assert sorted(drain(queue)) == ["a", "b"]
    assert len(queue) == 0


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_thousands_of_random_operations_behave_as_a_sorted_list(policy: str) -> None:
    queue = create_request_queue(SchedulingPolicy(policy))
    model: list[Request] = []
    rng = random.Random(1)
    for number in range(5000):
        kind = rng.randrange(5)
        if kind <= 1:
            fresh = request(str(number % 40), rng.randrange(3), float(rng.randrange(50)))
            if any(r.request_id == fresh.request_id for r in model):
                continue
            back = kind == 1 and rng.random() < 0.5
            queue.prepend_request(fresh) if back else queue.add_request(fresh)
            model.insert(0, fresh) if back else model.append(fresh)
        elif kind == 2 and model:
            queue.remove_request(model.pop(rng.randrange(len(model))))
        elif kind == 3 and model:
            first = model[0] if policy == "fcfs" else min(model)
            model.remove(first)
            assert queue.peek_request() is first
            assert queue.pop_request() is first
        assert len(queue) == len(model)
        if number % 50 == 0:
            expected = model if policy == "fcfs" else sorted(model)
            assert ids(queue) == [r.request_id for r in expected]
