"""The traces of asynchronous scheduling, and the loop that drives a scheduler through one.

As `course.parity.traces`, but that a scheduler is asked for a plan before it hears what came of the one
before, as `vllm/v1/engine/core.py:469 EngineCore.step_with_batch_queue` asks it, with a queue of two and
a device that is never done early: plan, plan, take in the older, plan again. So `steps` of such a trace
is a list of calls, and a request's `step` and `abort` count turns of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, NotRequired, TypedDict

from course.parity.traces import Parts, Run, Workload, drafted, verified

BATCH_QUEUE_SIZE = 2


class Plan(TypedDict):
    """What a `schedule()` decided, read right after it; `scheduled` is in scheduling order."""

    call: Literal["schedule"]
    turn: int
    scheduled: dict[str, int]
    preempted: list[str]
    blocks: dict[str, Any]
    placeholders: dict[str, int]
    running: list[str]
    free: int
    drafts: NotRequired[dict[str, list[int]]]


class Update(TypedDict):
    """What taking in the oldest plan's result changed, read right after it.

    `finished` has the requests of that plan that have ended by now, for whatever reason. With speculation
    only: `computed`, what those that live on have computed, and `sampled`, how many tokens came of the plan.
    """

    call: Literal["update"]
    running: list[str]
    finished: dict[str, str]
    free: int
    computed: NotRequired[dict[str, int]]
    sampled: NotRequired[dict[str, int]]


Call = Plan | Update
# In the order in which one decision causes the next, so that the first to differ is the cause.
FIELDS = {
    "schedule": ("preempted", "scheduled", "drafts", "blocks", "placeholders", "running", "free"),
    "update": ("finished", "computed", "running", "free"),
}
DRAFT_FIELDS = ("drafts", "computed")  # of those, what is there with speculation only


class AsyncRun(Run):
    """One workload going through one scheduler that plans ahead: take the calls from `calls`.

    `step` counts the turns.
    """

    def __init__(self, workload: Workload, parts: Parts) -> None:
        super().__init__(workload, parts)
        self._queue: deque[tuple[Any, dict[str, bool]]] = deque()  # newest first
        self._resets = set()  # see `Workload`

    @property
    def done(self) -> bool:
        return not (self._pending or self.parts.scheduler.has_requests() or self._queue)

    def calls(self) -> Iterator[Call]:
        """Turn after turn, until nothing is left to do: every call, once it has been made."""
        while not self.done:
            self.arrive()
            self.step += 1
            if self.parts.scheduler.has_requests():
                plan = self._plan()
                yield plan
                if plan["scheduled"] and len(self._queue) < BATCH_QUEUE_SIZE:
                    continue
            elif not self._queue:
                continue
            yield self._update()

    def _plan(self) -> Plan:
        scheduler, live = self.parts.scheduler, self.live
        output = scheduler.schedule()
        ids = list(output.num_scheduled_tokens)
        # A request samples with this plan unless more of it has to be computed first.
        self._queue.appendleft((output, {i: not live[i].is_prefill_chunk for i in ids}))
        plan: Plan = {
            "call": "schedule",
            "turn": self.step - 1,
            "scheduled": dict(output.num_scheduled_tokens),
            "preempted": sorted(output.preempted_req_ids or ()),
            "blocks": {i: self.parts.block_ids(i) for i in ids},
            "placeholders": {i: live[i].num_output_placeholders for i in ids},
            "running": [request.request_id for request in scheduler.running],
            "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }
        if self.spec is not None:
            drafts = output.scheduled_spec_decode_tokens
            plan["drafts"] = {i: list(ids) for i, ids in drafts.items()}
        return plan

    def _update(self) -> Update:
        scheduler, live = self.parts.scheduler, self.live
        output, samples = self._queue.pop()
        sampled = [self._verified(i, output) if samples[i] else [] for i in samples]
        num_sampled = {i: len(ids) for i, ids in zip(samples, sampled, strict=True)}
        scheduler.update_from_output(output, self.parts.make_output(list(samples), sampled))
        update: Update = {
            "call": "update",
            "running": [request.request_id for request in scheduler.running],
            "finished": {i: live[i].status.name for i in samples if live[i].is_finished()},
            "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }
        if self.spec is not None:
            update["sampled"] = num_sampled
            update["computed"] = {
                i: live[i].num_computed_tokens for i in samples if i in scheduler.requests
            }
        return update

    def _verified(self, request_id: str, output: Any) -> list[int]:
        """What a plan samples for a request. The scheduler left placeholders for its drafts; the worker
        knows them, and knows where they belong, since what came before is there by now."""
        index, pos = self._index[request_id], self.live[request_id].num_tokens
        num_drafts = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
        return verified(index, pos, drafted(index, pos, num_drafts))


def differing(expected: Any, actual: Any) -> tuple[str, ...]:
    """The fields in which two calls differ, the causes first; `calls` if they are not the same call."""
    if expected["call"] != actual["call"] or expected.get("turn") != actual.get("turn"):
        return ("calls",)
    fields = FIELDS[expected["call"]]
    unlike = [name for name in fields if expected.get(name) != actual.get(name)]
    orders = [list(call.get("scheduled", ())) for call in (expected, actual)]
    if "scheduled" not in unlike and orders[0] != orders[1]:
        unlike.insert("preempted" in unlike, "scheduled")
    return tuple(unlike)
