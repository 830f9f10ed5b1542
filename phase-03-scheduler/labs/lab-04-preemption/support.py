"""Given for lab 03-04: a scheduler with people in it, one step after the other, and what must hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mini_vllm import EngineConfig
from mini_vllm.kv_cache_manager import KVCacheBlocks, KVCacheManager, cdiv
from mini_vllm.request import Request, RequestStatus
from mini_vllm.request_queue import SchedulingPolicy
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sched_output import ModelRunnerOutput, SchedulerOutput


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
    return {name: len(manager.get_block_ids(name)) for name in scheduler.requests}


# ---- what must hold right after each schedule() --------------------------------------------------


def broken(scheduler: Any, plan: SchedulerOutput, leader: Request | None) -> list[str]:
    """The rules that a step has broken, by name; `leader` was the first of `running` before it."""
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    tokens = plan.num_scheduled_tokens
    found = []

    def hold(name: str, rule: bool, what: object) -> None:
        if not rule:
            found.append(f"{name}: {what}")

    queued = names(running + waiting)
    hold(
        "I6", sorted(queued) == sorted(scheduler.requests), f"queued {queued}: all alive, once each"
    )
    statuses = {r.request_id: r.status.name for r in running + waiting}
    hold("I6", all(r.status is RequestStatus.RUNNING for r in running), f"running, {statuses}")
    asleep = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
    hold("I6", all(r.status in asleep for r in waiting), f"waiting, {statuses}")
    budget = scheduler.max_num_scheduled_tokens
    hold("I7", sum(tokens.values()) <= budget, f"{tokens} are more than {budget}")
    hold("I7", all(n > 0 for n in tokens.values()), f"0 tokens for somebody: {tokens}")
    victims = plan.preempted_req_ids
    hold("I7", not victims & set(tokens), f"victims {sorted(victims)} in the step: {tokens}")
    for r in waiting:
        hold("I8", r.num_computed_tokens == 0, f"{r} waits, and counts as computed")
    for r in running:
        hold("I8", 0 <= r.num_computed_tokens <= r.num_tokens, f"{r}")
    seats = scheduler.max_num_running_reqs
    hold("I9", len(running) <= seats, f"{len(running)} run on {seats} seats")
    told = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
    known = plan.scheduled_cached_reqs
    told |= dict(zip(known.req_ids, known.num_computed_tokens, strict=True))
    hold(
        "I10", told.keys() == tokens.keys(), f"the worker hears of {sorted(told)}, served {tokens}"
    )
    for r in running:
        n = tokens.get(r.request_id, 0)
        caught_up = told.get(r.request_id, r.num_computed_tokens) + n == r.num_tokens
        hold("I10", caught_up is (r.num_computed_tokens == r.num_tokens), f"{r}, {n} of them now")
    for r in running:
        due = cdiv(r.num_computed_tokens, scheduler.config.block_size)
        held = shares(scheduler)[r.request_id]
        hold("I11", held == due, f"{r} holds {held} blocks, its tokens fill {due}")
    for r in waiting:
        held = shares(scheduler)[r.request_id]
        hold("I11", held == 0, f"{r} waits, and holds {held} blocks")
    hold("I13", bool(victims or tokens or not queued), "nobody was served, and nobody preempted")
    if scheduler.policy is SchedulingPolicy.FCFS:
        hold("I13", leader is None or leader in running, f"{leader} was the first of the running")
        been = [r.arrival_time for r in running + waiting if r.num_cached_tokens >= 0]
        never = [r.arrival_time for r in waiting if r.num_cached_tokens < 0]
        hold("I13", not been or not never or max(been) < min(never), "somebody was overtaken")
    return found
