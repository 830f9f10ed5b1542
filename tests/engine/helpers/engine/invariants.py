"""What must hold of a scheduler at any moment, beyond the block pool's own I1 to I5.

* I6   A living request is in exactly one of `waiting`, `skipped_waiting` and `running`, and its status
       says whether it runs and whether it is blocked.
* I7   A step hands out at most the token budget, at least one token to each request in it, and no
       request more than the long-prefill threshold.
* I8   `0 <= num_computed_tokens <= num_tokens`; while a request waits it has computed nothing.
* I9   No more than `max_num_seqs` requests run.
* I10  A request samples in a step if and only if the step lets it catch up.
* I11  A running request holds just the blocks that its computed tokens fill; a waiting one, none.
* I12  What is published is what has been computed: the full blocks, all of them, and no other.
* I13  Nobody starves: a step that preempts nobody schedules somebody, and under FCFS a request that
       was never admitted has nobody admitted past it.

With asynchronous scheduling a token in flight counts as one of the request's (I8), its block is
published as soon as it is known, at the latest with the next plan (I12), and a plan may be empty while
results are on their way (I13).
"""

from __future__ import annotations

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.sched.request_queue import SchedulingPolicy
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.utils.math import cdiv


def check_state(scheduler: Scheduler) -> None:
    """I1 to I4, and what of I6 to I13 can be seen between two steps."""
    manager = scheduler.kv_cache_manager
    manager.check_invariants()
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    skipped = list(scheduler.skipped_waiting)
    ids = [r.request_id for r in running + waiting + skipped]
    assert len(set(ids)) == len(ids), f"I6: a request is queued twice: {ids}"
    assert set(ids) == set(scheduler.requests), f"I6: queued {ids}, alive {set(scheduler.requests)}"
    assert all(r.status is RequestStatus.RUNNING for r in running), f"I6: {running}"
    assert all(r.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED) for r in waiting), (
        f"I6: {waiting}"
    )
    limit = scheduler.max_num_running_reqs
    assert len(running) <= limit, f"I9: {len(running)} requests run, {limit} may"
    assert set(manager.req_to_blocks) <= {r.request_id for r in running}, (
        "I11: blocks are held by a request that does not run"
    )
    for request in waiting + skipped:
        assert request.num_computed_tokens == 0, f"I8: computed while it waits: {request}"
    for request in running:
        _check_running(scheduler, request)
    if scheduler.policy is SchedulingPolicy.FCFS:
        admitted = [r.arrival_time for r in running + waiting if r.num_cached_tokens >= 0]
        never = [r.arrival_time for r in waiting if r.num_cached_tokens < 0]
        assert not admitted or not never or max(admitted) < min(never), "I13: somebody overtook"


def _check_running(scheduler: Scheduler, request: Request) -> None:
    manager = scheduler.kv_cache_manager
    computed = request.num_computed_tokens
    in_flight = request.num_output_placeholders
    assert 0 <= computed <= request.num_tokens + in_flight, f"I8: {request}, {in_flight} in flight"
    held = len(manager.get_block_ids(request.request_id)[0])
    needed = cdiv(computed, manager.block_size)
    assert held == needed, f"I11: {request} holds {held} blocks, its tokens fill {needed}"
    if manager.enable_caching:
        published = manager.num_cached_block.get(request.request_id, 0)
        least = (computed - in_flight) // manager.block_size
        full = min(computed, request.num_tokens) // manager.block_size
        assert least <= published <= full, (
            f"I12: {request} has {full} full blocks, {published} published"
        )


def check_scheduled(scheduler: Scheduler, output: SchedulerOutput) -> None:
    """What must hold right after `schedule`."""
    tokens = output.num_scheduled_tokens
    assert output.total_num_scheduled_tokens == sum(tokens.values()), "I7: the total is off"
    budget = scheduler.max_num_scheduled_tokens
    assert sum(tokens.values()) <= budget, f"I7: {tokens} exceed the budget of {budget}"
    assert all(n >= 1 for n in tokens.values()), f"I7: a request in the step gets nothing: {tokens}"
    threshold = scheduler.long_prefill_token_threshold or budget
    assert all(n <= threshold for n in tokens.values()), f"I7: {tokens}, threshold {threshold}"
    assert not output.preempted_req_ids & set(tokens), "I7: a preempted request is in the step"
    in_flight = [r for r in scheduler.requests.values() if r.num_output_placeholders]
    assert output.preempted_req_ids or tokens or in_flight or not scheduler.requests, (
        "I13: nobody was scheduled and nobody preempted"
    )
    check_state(scheduler)


def check_sampled(
    scheduler: Scheduler, output: SchedulerOutput, result: ModelRunnerOutput, before: dict[str, int]
) -> None:
    """I10, after the update; `before` has `num_tokens` of each request as it was at the forward, with
    what was in flight then."""
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    for request_id, num_tokens in output.num_scheduled_tokens.items():
        sampled = bool(result.sampled_token_ids[result.req_id_to_index[request_id]])
        caught_up = computed[request_id] + num_tokens == before[request_id]
        assert sampled == caught_up, f"I10: {request_id}: caught up {caught_up}, sampled {sampled}"


def check_drained(scheduler: Scheduler) -> None:
    """When all is done nothing is left: no request, no table, no block in use."""
    assert not scheduler.requests, f"requests are left: {list(scheduler.requests)}"
    assert not scheduler.has_unfinished_requests(), "the queues are not empty"
    manager = scheduler.kv_cache_manager
    assert not manager.req_to_blocks, f"tables are left: {list(manager.req_to_blocks)}"
    assert not manager.num_cached_block, f"counts are left: {manager.num_cached_block}"
    free, usable = manager.block_pool.get_num_free_blocks(), manager.block_pool.num_gpu_blocks - 1
    assert free == usable, f"{usable - free} of {usable} blocks leaked"
    manager.check_invariants()
