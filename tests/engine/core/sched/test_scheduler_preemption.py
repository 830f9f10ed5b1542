"""The scheduler: preemption, abort, stopping; one rule a test, without a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.output import ModelRunnerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from tests.engine.helpers.engine.invariants import check_drained, check_state
from tests.engine.helpers.engine.workloads import EOS, make_request, make_scheduler, step
from tests.engine.helpers.scheduler.scheduler_helpers import apart, setup, text

# -- preemption -----------------------------------------------------------------------------------


def crowd(policy: str, priorities: list[int], **settings: Any) -> tuple[Scheduler, list[Request]]:
    """Requests of 16 tokens each that fill a pool to the last block: the next token needs one."""
    scheduler = make_scheduler(
        num_gpu_blocks=len(priorities) + 1, scheduling_policy=policy, max_model_len=32, **settings
    )
    requests = []
    for i, (prompt, priority) in enumerate(
        zip(apart(16, len(priorities)), priorities, strict=True)
    ):
        request = make_request(
            scheduler, str(i), prompt, priority=priority, arrival_time=float(i), max_tokens=8
        )
        requests.append(request)
        scheduler.add_request(request)
    step(scheduler)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 0
    return scheduler, requests


def test_fcfs_preempts_the_last_of_the_running_as_often_as_it_must() -> None:
    scheduler, requests = crowd("fcfs", [0, 0, 0, 0])
    done = step(scheduler)
    # 0 takes 3's block, 1 takes 2's: two run on.
    assert (done.scheduled, done.preempted) == ({"0": 1, "1": 1}, {"2", "3"})
    assert [r.request_id for r in scheduler.waiting] == ["2", "3"]
    assert [r.num_preemptions for r in requests] == [0, 0, 1, 1]
    assert scheduler.num_preemptions == 2
    check_state(scheduler)


def test_fcfs_the_last_one_preempts_itself() -> None:
    scheduler, _ = crowd("fcfs", [0, 0, 0])
    done = step(scheduler)
    assert (done.scheduled, done.preempted) == ({"0": 1}, {"1", "2"})


def test_priority_preempts_the_least_important_then_the_latest() -> None:
    scheduler, _ = crowd("priority", [1, 2, 2, 0])
    assert [r.request_id for r in scheduler.running] == ["3", "0", "1", "2"]
    done = step(scheduler)
    assert (done.scheduled, done.preempted) == ({"3": 1, "0": 1}, {"2", "1"})


def test_priority_a_victim_scheduled_in_this_step_gives_its_tokens_back() -> None:
    """Who runs first is not who matters most: a later admission may be more important."""
    scheduler = make_scheduler(
        num_gpu_blocks=4, scheduling_policy="priority", max_model_len=48, max_num_seqs=4
    )
    low = make_request(scheduler, "low", text(15), priority=9, arrival_time=0.0)
    scheduler.add_request(low)
    step(scheduler)
    high = make_request(scheduler, "high", text(32, 200), priority=0, arrival_time=1.0)
    scheduler.add_request(high)
    step(scheduler)
    assert [r.request_id for r in scheduler.running] == ["low", "high"]
    assert (low.num_tokens, high.num_tokens) == (17, 33)
    # Now `low` needs a second block: nothing is free, and it is itself the least important.
    done = step(scheduler)
    assert (done.scheduled, done.preempted) == ({}, {"low"})
    assert done.output.total_num_scheduled_tokens == 0
    assert step(scheduler).scheduled == {"high": 1}

    scheduler = make_scheduler(
        num_gpu_blocks=4, scheduling_policy="priority", max_model_len=48, max_num_seqs=4
    )
    low = make_request(scheduler, "low", text(10), priority=9, arrival_time=0.0)
    scheduler.add_request(low)
    step(scheduler)
    high = make_request(scheduler, "high", text(32, 200), priority=0, arrival_time=1.0)
    scheduler.add_request(high)
    step(scheduler)
    done = step(scheduler)  # `low` got its token; then `high` needs a third block
    assert (done.scheduled, done.preempted) == ({"high": 1}, {"low"})
    assert done.output.total_num_scheduled_tokens == 1
    assert done.output.scheduled_cached_reqs.req_ids == ["high"]
    assert (low.num_computed_tokens, low.num_tokens) == (0, 12)
    check_state(scheduler)


def test_priority_a_waiting_request_never_preempts_a_running_one() -> None:
    scheduler, _ = crowd("priority", [5, 5, 5], max_num_seqs=3)
    urgent = make_request(scheduler, "urgent", text(4), priority=0, arrival_time=9.0)
    scheduler.add_request(urgent)
    scheduler.schedule()
    assert urgent.status is RequestStatus.WAITING


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    scheduler, _ = crowd("fcfs", [0, 0, 0, 0], max_num_seqs=8)
    scheduler.add_request(make_request(scheduler, "new", text(4), arrival_time=9.0))
    done = step(scheduler)
    assert done.preempted
    assert "new" not in done.scheduled


def test_preempted_requests_keep_their_tokens_lose_their_blocks_and_go_to_the_front() -> None:
    scheduler, requests = crowd("fcfs", [0, 0])
    scheduler.add_request(make_request(scheduler, "new", text(4), arrival_time=9.0))
    step(scheduler)
    victim = requests[1]
    assert victim.status is RequestStatus.PREEMPTED
    assert (victim.num_computed_tokens, victim.num_tokens, victim.output_token_ids) == (0, 17, [9])
    assert scheduler.kv_cache_manager.get_block_ids("1") == ([],)
    assert [r.request_id for r in scheduler.waiting] == ["1", "new"]


def test_a_resumed_request_is_sent_with_its_whole_new_table() -> None:
    scheduler, (_, victim) = crowd("fcfs", [0, 0])
    first_cached = victim.num_cached_tokens
    while victim.status is not RequestStatus.RUNNING or not victim.num_preemptions:
        done = step(scheduler)
    cached = done.output.scheduled_cached_reqs
    assert cached.resumed_req_ids == {"1"}
    assert cached.new_block_ids[cached.req_ids.index("1")] == (done.tables["1"],)
    assert len(done.tables["1"]) == 2
    assert victim.num_cached_tokens == first_cached, "the first admission's hits are reported"
    assert not done.output.scheduled_new_reqs


def test_running_requests_are_told_only_their_new_blocks() -> None:
    scheduler, _ = setup(text(31), text(10, 200))
    first = step(scheduler)
    assert {new.req_id: new.block_ids[0] for new in first.output.scheduled_new_reqs} == first.tables
    cached = step(scheduler).output.scheduled_cached_reqs
    assert (cached.req_ids, cached.new_block_ids) == (["0", "1"], [None, None])
    cached = step(scheduler).output.scheduled_cached_reqs
    assert (cached.new_block_ids, cached.num_computed_tokens) == ([([4],), None], [32, 11])


# -- abort ----------------------------------------------------------------------------------------


def abort(scheduler: Scheduler, ids: str | Iterable[str]) -> list[str]:
    return scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)


def test_abort_while_waiting_running_and_preempted() -> None:
    scheduler, requests = crowd("fcfs", [0, 0, 0, 0], max_num_seqs=8)
    scheduler.add_request(make_request(scheduler, "new", text(4), arrival_time=9.0))
    step(scheduler)
    assert [r.status.name for r in requests] == ["RUNNING", "RUNNING", "PREEMPTED", "PREEMPTED"]
    assert abort(scheduler, ["0", "new", "3"]) == ["0", "new", "3"]
    check_state(scheduler)
    assert [r.request_id for r in scheduler.running] == ["1"]
    assert [r.request_id for r in scheduler.waiting] == ["2"]
    assert scheduler.schedule().finished_req_ids == {"0", "new", "3"}


def test_abort_of_an_unknown_or_finished_request_is_passed_over() -> None:
    scheduler, _ = setup(text(4), text(4, 200))
    assert abort(scheduler, "nobody") == []
    assert abort(scheduler, ["nobody", "0", "0"]) == ["0"]
    assert abort(scheduler, "0") == []
    assert scheduler.get_num_unfinished_requests() == 1


def test_abort_between_schedule_and_update_drops_the_token() -> None:
    scheduler, (a, b) = setup(*apart(4, 2))
    output = scheduler.schedule()
    abort(scheduler, "0")
    result = ModelRunnerOutput(["0", "1"], {"0": 0, "1": 1}, [[7], [8]])
    outputs = scheduler.update_from_output(output, result)
    assert [o.request_id for o in outputs] == ["1"]
    assert (a.output_token_ids, b.output_token_ids) == ([], [8])
    check_state(scheduler)


def test_abort_of_all_frees_everything() -> None:
    scheduler, _ = setup(*apart(40, 5))
    step(scheduler)
    abort(scheduler, [str(i) for i in range(5)])
    check_drained(scheduler)


def test_finished_ids_are_sent_once() -> None:
    scheduler, _ = setup(text(4), text(4, 200), more={"max_tokens": 2})
    step(scheduler)
    abort(scheduler, "0")
    assert step(scheduler).output.finished_req_ids == {"0"}
    assert scheduler.finished_req_ids == {"1"}
    scheduler.add_request(make_request(scheduler, "2", text(4, 300)))
    assert step(scheduler).output.finished_req_ids == {"1"}
    assert step(scheduler).output.finished_req_ids == set()


# -- stopping -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "sampled", "outputs", "status", "reason", "stop_reason"),
    [
        ({"max_tokens": 3}, [5, 5, 5], 3, "FINISHED_LENGTH_CAPPED", "length", None),
        ({"ignore_eos": False}, [5, EOS], 2, "FINISHED_STOPPED", "stop", None),
        ({"max_tokens": 2, "ignore_eos": False}, [5, EOS], 2, "FINISHED_STOPPED", "stop", None),
        ({"max_tokens": 3}, [5, EOS, 5], 3, "FINISHED_LENGTH_CAPPED", "length", None),
        ({"stop_token_ids": [7, 8]}, [5, 8], 2, "FINISHED_STOPPED", "stop", 8),
        ({"stop_token_ids": [8], "max_tokens": 1}, [8], 1, "FINISHED_STOPPED", "stop", 8),
        ({"stop_token_ids": [8], "min_tokens": 3}, [8, 8, 8], 3, "FINISHED_STOPPED", "stop", 8),
        ({"ignore_eos": False, "min_tokens": 2}, [EOS, EOS], 2, "FINISHED_STOPPED", "stop", None),
    ],
)
def test_stop_order_is_min_tokens_eos_stop_ids_length(
    params: dict[str, Any],
    sampled: list[int],
    outputs: int,
    status: str,
    reason: str,
    stop_reason: int | None,
) -> None:
    scheduler, (a,) = setup(text(4), more=params)
    tokens = iter(sampled)
    for token_number in range(1, len(sampled) + 1):
        done = step(scheduler, lambda request: next(tokens))
        assert bool(done.outputs[0].finish_reason) == (token_number == outputs)
    assert a.output_token_ids == sampled[:outputs]
    assert a.status.name == status
    assert done.outputs[0].finish_reason == reason
    assert done.outputs[0].stop_reason == stop_reason
    check_drained(scheduler)


def test_max_model_len_ends_a_request() -> None:
    scheduler, (a,) = setup(text(10), max_model_len=14, more={"max_tokens": 100})
    while scheduler.has_unfinished_requests():
        step(scheduler)
    assert a.num_tokens == 14
    assert a.status is RequestStatus.FINISHED_LENGTH_CAPPED


def test_several_requests_may_stop_in_one_step_and_the_others_keep_their_order() -> None:
    scheduler, _ = setup(*apart(4, 5), more={"stop_token_ids": [7]})
    step(scheduler, lambda r: 7 if r.request_id in "13" else 9)
    assert [r.request_id for r in scheduler.running] == ["0", "2", "4"]
    check_state(scheduler)


def test_outputs_report_the_tokens_found_in_the_cache() -> None:
    scheduler, _ = setup(text(40), text(40))
    assert [o.num_cached_tokens for o in step(scheduler).outputs] == [0, 32]
