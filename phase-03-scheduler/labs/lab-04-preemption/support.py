"""Given for lab 03-04: a scheduler with people in it, one step after the other, and what must hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mini_vllm import EngineConfig
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.sched.request_queue import SchedulingPolicy
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils.math import cdiv


class Patient(KVCacheManager):
    """The engine's manager; after fifty refusals in a row it says that something turns in circles."""

    refused = 0

    def allocate_slots(self, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
        blocks = super().allocate_slots(*args, **kwargs)
        self.refused = 0 if blocks is not None else self.refused + 1
        if self.refused > 50:
            raise AssertionError(
                "allocate_slots said None fifty times in one step: between two calls somebody must lose "
                "blocks, and whoever has none left must stop asking"
            )
        return blocks


def make(lab: Any, blocks: int = 99, **settings: Any) -> Any:
    """A scheduler of the graded file: blocks of 4 tokens, 16 tokens a step, 8 seats, no prefix caching."""
    given: dict[str, Any] = {"block_size": 4, "num_gpu_blocks": blocks + 1, "max_model_len": 64}
    given |= {"max_num_batched_tokens": 16, "max_num_seqs": 8, "enable_prefix_caching": False}
    config = EngineConfig(**(given | settings))
    assert config.num_gpu_blocks is not None, "blocks are given"
    assert config.max_model_len is not None, "max_model_len is given"
    manager = Patient(
        config.num_gpu_blocks, config.block_size, config.max_model_len, config.enable_prefix_caching
    )
    return lab.Scheduler(config, manager)


def come(
    scheduler: Any,
    name: str,
    num_prompt_tokens: int,
    want: int = 8,
    priority: int = 0,
    arrival_time: float | None = None,
) -> Request:
    """Somebody arrives, later than all before unless a time is given."""
    number = len(scheduler.requests)
    request = Request(
        name,
        [3 + 100 * number + i for i in range(num_prompt_tokens)],
        SamplingParams(max_tokens=want, ignore_eos=True),
        arrival_time=float(number) if arrival_time is None else arrival_time,
        priority=priority,
        block_size=scheduler.config.block_size,
    )
    scheduler.add_request(request)
    return request


def turn(scheduler: Any) -> SchedulerOutput:
    """Plan a step, and give a token to whoever has caught up."""
    scheduler.kv_cache_manager.refused = 0
    plan: SchedulerOutput = scheduler.schedule()
    names = list(plan.num_scheduled_tokens)
    requests = [scheduler.requests[name] for name in names]
    sampled = [[2] if r.num_computed_tokens == r.num_tokens else [] for r in requests]
    index = {name: number for number, name in enumerate(names)}
    scheduler.update_from_output(plan, ModelRunnerOutput(names, index, sampled))
    return plan


def full(lab: Any, *priorities: int, **settings: Any) -> Any:
    """Ann, Ben, Cleo and so on, 4 tokens and so one block each, and no block is left.

    Each has sampled a token, which the next step computes: everybody wants a second block.
    """
    policy = "priority" if any(priorities) else "fcfs"
    scheduler = make(lab, len(priorities), scheduling_policy=policy, **settings)
    for name, priority in zip(("ann", "ben", "cleo", "dan"), priorities, strict=False):
        come(scheduler, name, 4, want=4, priority=priority)
    turn(scheduler)
    return scheduler


def eve_fay_gil(scheduler_class: Any, **settings: Any) -> list[tuple[dict[str, int], set[str]]]:
    """The README's scene: for each step the tokens that it computes, and who loses blocks."""
    scheduler = make(SimpleNamespace(Scheduler=scheduler_class), 9, max_num_seqs=3, **settings)
    come(scheduler, "eve", 9, 12)
    steps = []
    while scheduler.has_unfinished_requests():
        if len(steps) == 2:
            come(scheduler, "fay", 11, 8)
            come(scheduler, "gil", 8, 6)
        plan = turn(scheduler)
        steps.append((dict(plan.num_scheduled_tokens), set(plan.preempted_req_ids)))
    return steps


def names(requests: Any) -> list[str]:
    return [request.request_id for request in requests]


def shares(scheduler: Any) -> dict[str, int]:
    """How many blocks each living request holds."""
    manager = scheduler.kv_cache_manager
    return {name: len(manager.get_block_ids(name)[0]) for name in scheduler.requests}


# ---- what must hold right after each schedule() --------------------------------------------------


def broken(scheduler: Any, plan: SchedulerOutput, leader: Request | None) -> list[str]:
    """The rules that a step has broken, by name; `leader` was the first of `running` before it."""
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    tokens, victims = plan.num_scheduled_tokens, plan.preempted_req_ids
    told = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
    known = plan.scheduled_cached_reqs
    told |= dict(zip(known.req_ids, known.num_computed_tokens, strict=True))
    budget, seats = scheduler.max_num_scheduled_tokens, scheduler.max_num_running_reqs
    held, block_size = shares(scheduler), scheduler.config.block_size
    queued = names(running + waiting)
    found = []
    if sorted(queued) != sorted(scheduler.requests):
        found.append(f"I6: queued are {queued}: not each of the living, once")
    if sum(tokens.values()) > budget or 0 in tokens.values():
        found.append(f"I7: {tokens}: at least 1 for each, and {budget} in all at most")
    if victims & set(tokens):
        found.append(f"I7: {sorted(victims & set(tokens))} lost their blocks, and are in the step")
    if len(running) > seats:
        found.append(f"I9: {len(running)} run on {seats} seats")
    if told.keys() != tokens.keys():
        found.append(f"I10: the worker hears of {sorted(told)}, served are {sorted(tokens)}")
    for r in running:
        computed, name = r.num_computed_tokens, r.request_id
        if r.status is not RequestStatus.RUNNING:
            found.append(f"I6: {r} runs")
        if not 0 <= computed <= r.num_tokens:
            found.append(f"I8: {r}")
        if name in told and told[name] + tokens.get(name, 0) != computed:
            found.append(f"I10: {r}; the worker computes {tokens.get(name)} from {told[name]} on")
        if held[name] != cdiv(computed, block_size):
            found.append(f"I11: {r} holds {held[name]} blocks of {block_size}")
    for r in waiting:
        if r.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            found.append(f"I6: {r} waits")
        if r.num_computed_tokens != 0:
            found.append(f"I8: {r} waits")
        if held[r.request_id] != 0:
            found.append(f"I11: {r} waits, and holds {held[r.request_id]} blocks")
    if queued and not victims and not tokens:
        found.append("I13: nobody was served, and nobody preempted")
    if scheduler.policy is SchedulingPolicy.FCFS:
        if leader is not None and leader not in running:
            found.append(f"I13: {leader} was the first of the running")
        been = [r.arrival_time for r in running + waiting if r.num_cached_tokens >= 0]
        never = [r.arrival_time for r in waiting if r.num_cached_tokens < 0]
        if been and never and max(been) > min(never):
            found.append("I13: a newcomer was overtaken by somebody who came later")
    return found
