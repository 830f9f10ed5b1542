"""The waiting requests, in the order in which they will be tried.

Mirrors `vllm/v1/core/sched/request_queue.py`. Upstream filters a whole deque
or heap to take one request out; here both queues do it without looking at the others, so that
aborting one of 100,000 waiting requests costs what aborting one of ten does.
"""

from __future__ import annotations

import enum
import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from mini_vllm.core.request import Request, RequestStatus


class SchedulingPolicy(enum.Enum):
    """`fcfs`: first come, first served. `priority`: lower `priority` first, then earlier arrival."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class RequestQueue(Protocol):
    """What the scheduler asks of its waiting queue."""

    def add_request(self, request: Request) -> None: ...
    def prepend_request(self, request: Request) -> None: ...
    def peek_request(self) -> Request: ...
    def pop_request(self) -> Request: ...
    def remove_request(self, request: Request) -> None: ...
    def __contains__(self, request: Request) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...


class FCFSRequestQueue:
    """First come, first served; a preempted request goes back to the front
    (`vllm/v1/core/sched/request_queue.py:75 FCFSRequestQueue`)."""

    def __init__(self) -> None:
        # An OrderedDict is a linked list with an index: O(1) at both ends and in the middle.
        self._queue: OrderedDict[str, Request] = OrderedDict()

    def add_request(self, request: Request) -> None:
        self._queue[request.request_id] = request

    def prepend_request(self, request: Request) -> None:
        self._queue[request.request_id] = request
        self._queue.move_to_end(request.request_id, last=False)

    def peek_request(self) -> Request:
        return next(iter(self._queue.values()))

    def pop_request(self) -> Request:
        return self._queue.popitem(last=False)[1]

    def remove_request(self, request: Request) -> None:
        del self._queue[request.request_id]

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._queue

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue.values())


class PriorityRequestQueue:
    """A heap by (priority, arrival time, request id). There is no front to go back to.
    Source: `vllm/v1/core/sched/request_queue.py:131 PriorityRequestQueue`.

    A removed request stays in the heap until it comes to the top, and is then passed over.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, str, Request]] = []
        self._live: dict[str, Request] = {}

    def add_request(self, request: Request) -> None:
        self._live[request.request_id] = request
        key = (request.priority, request.arrival_time, request.request_id, request)
        heapq.heappush(self._heap, key)

    prepend_request = add_request

    def _drop_removed(self) -> None:
        heap, live = self._heap, self._live
        while live.get(heap[0][2]) is not heap[0][3]:
            heapq.heappop(heap)

    def peek_request(self) -> Request:
        self._drop_removed()
        return self._heap[0][3]

    def pop_request(self) -> Request:
        self._drop_removed()
        request = heapq.heappop(self._heap)[3]
        del self._live[request.request_id]
        return request

    def remove_request(self, request: Request) -> None:
        del self._live[request.request_id]
        if len(self._heap) > 2 * len(self._live) + 16:  # mostly removed ones: start a new heap
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) is entry[3]]
            heapq.heapify(self._heap)

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._live

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._live.values()))


def create_request_queue(policy: SchedulingPolicy) -> RequestQueue:
    """The queue of a policy (`vllm/v1/core/sched/request_queue.py:201 create_request_queue`)."""
    return FCFSRequestQueue() if policy is SchedulingPolicy.FCFS else PriorityRequestQueue()


class RequestQueues:
    """The part of `Scheduler` that keeps its requests: one list and two queues.

    Attributes:
        running: the running requests, in the order in which a step serves them.
        waiting: requests that wait for room, in the order in which they will be tried.
        skipped_waiting: requests that were skipped, or were blocked when they arrived, for instance by a
            grammar that is still being compiled. Later steps try them again.
    """

    # What a later release decides otherwise in the middle of a method (`releases.py`).
    recounts_victims = False
    serves_behind_victims = False

    def _make_queues(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.running: list[Request] = []
        self.waiting = create_request_queue(policy)
        self.skipped_waiting = create_request_queue(policy)

    def _enqueue_waiting_request(self, request: Request) -> None:
        """(`vllm/v1/core/sched/scheduler.py:1613 Scheduler._enqueue_waiting_request`)"""
        blocked = RequestStatus.is_blocked(request.status)
        (self.skipped_waiting if blocked else self.waiting).add_request(request)

    def _remove_waiting_request(self, request: Request) -> None:
        skipped = request in self.skipped_waiting
        (self.skipped_waiting if skipped else self.waiting).remove_request(request)

    def get_num_waiting_requests(self) -> int:
        return len(self.waiting) + len(self.skipped_waiting)

    def get_num_unfinished_requests(self) -> int:
        return self.get_num_waiting_requests() + len(self.running)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running) or self.get_num_waiting_requests() > 0

    def _select_waiting_queue_for_scheduling(self) -> RequestQueue | None:
        """The queue whose head is tried next; None if both are empty. Under `fcfs` `skipped_waiting` is first
        (`vllm/v1/core/sched/scheduler.py:1619 Scheduler._select_waiting_queue_for_scheduling`)."""
        if not self.skipped_waiting:
            return self.waiting if self.waiting else None
        if self.waiting and self.policy is SchedulingPolicy.PRIORITY:
            first = self.waiting.peek_request() < self.skipped_waiting.peek_request()
            return self.waiting if first else self.skipped_waiting
        return self.skipped_waiting
