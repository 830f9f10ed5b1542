"""The gate of admission: rules that skip, stop, limit and supply tokens; one point per test, no model."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.admission import Admission, AdmissionGate, AdmissionRule
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.scheduler import Scheduler
from tests.engine.helpers.engine.invariants import check_drained, check_state
from tests.engine.helpers.engine.workloads import make_request, make_scheduler, step
from tests.engine.helpers.scheduler.scheduler_helpers import apart

GRAMMAR = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR


class Grammars(AdmissionRule):
    """Requests wait until their id is in `compiled`."""

    blocked_status = GRAMMAR

    def __init__(self) -> None:
        self.compiled: set[str] = set()

    def is_ready(self, request: Request) -> bool:
        return request.request_id in self.compiled


class Encoder(AdmissionRule):
    """At most `budget` tokens of images run in a step. Here every token of every request is an image's."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.withdrawn: list[str] = []

    def start_step(self, scheduled_running_reqs: Any) -> None:
        self.left = self.budget

    def limit_new_tokens(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        allowed = min(num_new_tokens, self.left)
        self.left -= allowed
        return allowed

    def withdraw(self, request: Request) -> None:
        self.withdrawn.append(request.request_id)


def gated(
    *rules: AdmissionRule,
    num_requests: int,
    blocked: str = "",
    scheduler_class: type[Scheduler] = Scheduler,
    **settings: Any,
) -> tuple[Scheduler, dict[str, Request]]:
    """A scheduler with these rules, and requests "0", "1", … of 16 tokens; `blocked` ones want grammars."""
    config = make_scheduler(**settings).config
    scheduler = scheduler_class(config, admission_rules=rules)
    requests = {}
    for i, prompt in enumerate(apart(16, num_requests)):
        request = make_request(scheduler, str(i), list(prompt), arrival_time=float(i), max_tokens=4)
        if str(i) in blocked:
            request.status = GRAMMAR
        requests[str(i)] = request
        scheduler.add_request(request)
    return scheduler, requests


def ids(queue: Any) -> list[str]:
    return [request.request_id for request in queue]


@pytest.mark.parametrize("scheduler_class", [Scheduler, AsyncScheduler])
def test_a_blocked_request_is_passed_and_admitted_when_it_is_ready(
    scheduler_class: type[Scheduler],
) -> None:
    grammars = Grammars()
    scheduler, requests = gated(
        grammars, num_requests=3, blocked="0", scheduler_class=scheduler_class, max_num_seqs=3
    )
    assert ids(scheduler.skipped_waiting) == ["0"]
    assert list(step(scheduler).scheduled) == ["1", "2"]
    assert (ids(scheduler.waiting), ids(scheduler.skipped_waiting)) == ([], ["0"])
    assert requests["0"].status is GRAMMAR
    check_state(scheduler)
    grammars.compiled.add("0")
    assert list(step(scheduler).scheduled) == ["1", "2", "0"]
    assert requests["0"].status is RequestStatus.RUNNING
    assert scheduler.get_num_waiting_requests() == 0


def test_skipped_requests_keep_their_order_and_come_before_the_waiting() -> None:
    grammars = Grammars()
    scheduler, _ = gated(grammars, num_requests=4, blocked="123", max_num_seqs=2)
    for _ in range(3):
        assert list(step(scheduler).scheduled) == ["0"]
        assert ids(scheduler.skipped_waiting) == ["1", "2", "3"]
    scheduler.add_request(make_request(scheduler, "late", [7] * 16))
    grammars.compiled.add("3")
    step(scheduler)
    assert "3" in ids(scheduler.running) or "3" in scheduler.finished_req_ids
    assert "late" in ids(scheduler.waiting) + ids(scheduler.running)
    assert ids(scheduler.skipped_waiting) == ["1", "2"]


@pytest.mark.parametrize(
    ("priority", "first"), [(0, "late"), (2, "0")], ids=["more important", "less important"]
)
def test_under_priority_the_better_head_of_both_queues_is_next(priority: int, first: str) -> None:
    grammars = Grammars()
    scheduler, requests = gated(
        grammars, num_requests=1, blocked="0", max_num_seqs=1, scheduling_policy="priority"
    )
    requests["0"].priority = 1
    step(scheduler)
    late = make_request(scheduler, "late", [7] * 16, priority=priority, arrival_time=9.0)
    scheduler.add_request(late)
    grammars.compiled.add("0")
    assert list(step(scheduler).scheduled) == [first]


def test_a_limit_of_zero_stops_those_behind_too() -> None:
    scheduler, _ = gated(Encoder(20), num_requests=3, max_num_batched_tokens=64, max_num_seqs=8)
    assert step(scheduler).scheduled == {"0": 16, "1": 4}
    assert ids(scheduler.waiting) == ["2"]


def test_a_request_without_room_is_withdrawn() -> None:
    encoder = Encoder(64)
    scheduler, _ = gated(
        encoder, num_requests=4, num_gpu_blocks=3, max_num_batched_tokens=64, max_num_seqs=8
    )
    assert list(step(scheduler).scheduled) == ["0", "1"]
    assert encoder.withdrawn == ["2"], "the first that does not fit; those behind it are not asked"


def test_tokens_from_elsewhere_count_as_computed() -> None:
    class Brings(AdmissionRule):
        admitted: list[tuple[str, int]]

        def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:
            return 8

        def admit(self, request: Request, num_external_tokens: int) -> None:
            self.admitted = [(request.request_id, num_external_tokens)]

    rule = Brings()
    scheduler, requests = gated(rule, num_requests=1, block_size=4)
    done = step(scheduler)
    assert done.scheduled == {"0": 8}
    assert done.output.scheduled_new_reqs[0].num_computed_tokens == 8
    assert len(done.output.scheduled_new_reqs[0].block_ids[0]) == 4, "blocks for all sixteen tokens"
    assert (rule.admitted, requests["0"].num_cached_tokens) == ([("0", 8)], 8)


def test_each_rule_is_told_what_it_supplies_itself() -> None:
    class Supplies(AdmissionRule):
        def __init__(self, num_tokens: int) -> None:
            self.num_tokens = num_tokens
            self.seen: list[int] = []

        def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:
            self.seen.append(num_computed_tokens)
            return self.num_tokens

        def admit(self, request: Request, num_external_tokens: int) -> None:
            self.seen.append(num_external_tokens)

    rules = [Supplies(8), Supplies(0), Supplies(4)]
    scheduler, _ = gated(*rules, num_requests=1, block_size=4)
    assert step(scheduler).scheduled == {"0": 4}
    assert [rule.seen for rule in rules] == [[0, 8], [8, 0], [8, 4]]


@pytest.mark.parametrize("rules", [(), (Encoder(64),)], ids=["no rule", "another rule"])
def test_a_blocked_request_that_no_rule_can_unblock_is_an_error(
    rules: tuple[AdmissionRule, ...],
) -> None:
    scheduler, _ = gated(*rules, num_requests=1, blocked="0")
    with pytest.raises(AssertionError, match="no admission rule has the status WAITING_FOR_STRUC"):
        step(scheduler)


def test_an_aborted_request_leaves_the_queue_that_it_is_in() -> None:
    scheduler, _ = gated(Grammars(), num_requests=3, blocked="12")
    step(scheduler)
    assert scheduler.get_num_unfinished_requests() == 3
    assert scheduler.make_stats().num_skipped_waiting_reqs == 2
    for request_id in ("1", "2", "0"):
        assert scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED) == [request_id]
    assert not scheduler.has_unfinished_requests()
    step(scheduler)
    check_drained(scheduler)


def test_the_first_rule_that_does_not_admit_decides() -> None:
    asked: list[str] = []

    class Says(AdmissionRule):
        def __init__(self, admission: Admission) -> None:
            self.admission = admission

        def check(self, request: Request) -> Admission:
            asked.append(self.admission.name)
            return self.admission

    request = gated(num_requests=1)[1]["0"]
    gate = AdmissionGate([Says(Admission.ADMIT), Says(Admission.SKIP), Says(Admission.STOP)])
    assert gate.check(request) is Admission.SKIP
    assert asked == ["ADMIT", "SKIP"]


def test_two_rules_do_not_share_a_status() -> None:
    with pytest.raises(ValueError, match="Grammars and Grammars both block with WAITING_FOR_STRUC"):
        AdmissionGate([Grammars(), Grammars()])
