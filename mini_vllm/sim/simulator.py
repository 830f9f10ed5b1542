"""The real scheduler and KV cache manager on a virtual clock.

Mirrors the engine core's loop: `EngineCore.step` (`vllm/v1/engine/core.py:428`) where scheduling is
synchronous, `step_with_batch_queue` (`vllm/v1/engine/core.py:469`) where it is asynchronous, or has a
pipeline. Nothing is computed. A step takes as long as its `StepCost` says, and each request ends at its
`max_tokens`.

The scheduler is whatever `SimParts` brings: ours, a learner's, vLLM's own. The loop reads from it
`num_scheduled_tokens`, `scheduled_new_reqs`, and from a request `num_computed_tokens`, `num_tokens` and
`num_output_tokens`: names that both engines have.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from mini_vllm.config.engine import EngineConfig, ResolvedConfig
from mini_vllm.config.scheduler import PIN
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sim.cost import PipelineCost, StageTime, StepCost, work_of
from mini_vllm.sim.metrics import Live, ServingMetrics
from mini_vllm.sim.speculation import Speculation
from mini_vllm.sim.workload import SimRequest

BATCH_QUEUE_SIZE = 2
"""Batches in flight under asynchronous scheduling
(`vllm/v1/executor/uniproc_executor.py:77 UniProcExecutor.max_concurrent_batches`)."""


@dataclass(frozen=True)
class SimParts:
    """A scheduler, and how to make what it takes.

    Attributes:
        make_request: the scheduler's request; ValueError for one that the engine would refuse.
        make_output: from request ids and the tokens sampled for each.
        async_scheduling: whether the loop has a queue of two batches. The scheduler must be one for it.
        pipeline_parallel_size: stages; where there are several, the loop has a queue of as many batches, and
            the scheduler is the plain one: it does not plan a request whose next token is in flight.
    """

    scheduler: Any
    make_request: Callable[[SimRequest], Any]
    make_output: Callable[[list[str], list[list[int]]], Any]
    async_scheduling: bool = False
    pipeline_parallel_size: int = 1


def mini_parts(
    config: EngineConfig,
    make_scheduler: Callable[[ResolvedConfig], Any] = Scheduler,
    async_scheduling: bool = False,
) -> SimParts:
    """`mini_vllm`'s scheduler, or another with its interface, for `Simulator`.

    Raises ValueError if `num_gpu_blocks` or `max_model_len` is None, as there is no model to decide them, and
    for asynchronous scheduling with a pipeline.
    """
    config = ResolvedConfig.of(config)
    block_size = config.block_size if config.enable_prefix_caching else None
    limit, stages = config.max_model_len, config.pipeline_parallel_size
    if stages > 1 and async_scheduling:
        raise ValueError(f"async_scheduling does not go with pipeline_parallel_size {stages}")

    def make_request(q: SimRequest) -> Request:
        if len(q.prompt) >= limit:
            raise ValueError(
                f"request {q.request_id!r} has a prompt of {len(q.prompt)} tokens, and with one of "
                f"output it is longer than max_model_len, {limit}"
            )
        return Request(
            q.request_id,
            q.prompt,
            _params(q.max_tokens),
            arrival_time=q.arrival,
            priority=q.priority,
            block_size=block_size,
        )

    scheduler = make_scheduler(config)
    if config.rules != PIN:
        from mini_vllm.core.sched.releases import put_on, rules_of

        put_on(scheduler, rules_of(config.rules))
    return SimParts(scheduler, make_request, _make_output, async_scheduling, stages)


@lru_cache(maxsize=4096)  # the requests of all engines share them; there are few lengths
def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def _make_output(req_ids: list[str], sampled: list[list[int]]) -> ModelRunnerOutput:
    index = {req_id: i for i, req_id in enumerate(req_ids)}
    return ModelRunnerOutput(req_ids, index, sampled)


@dataclass(slots=True)
class _Batch:
    """A plan on its way through the device."""

    plan: Any
    req_ids: list[str]
    samples: list[bool]  # whether the request gets a token of it
    done: float  # when the device is through
    num_draft_tokens: int = 0  # a request, for the step after


class Simulator:
    """Runs requests through a scheduler on a clock that only costs move.

    The front end and the core take turns on one host, as with `LLM` and
    `VLLM_ENABLE_V1_MULTIPROCESSING=0`. A request is added before the first step that begins after its
    arrival; adding costs `add_request_s`. Its tokens are there when the step's results are taken in.

    Args:
        parts: see `SimParts`.
        cost: what steps take; a `PipelineCost` where the parts have a pipeline.
        metrics: where the run is written down.
        observe: called with each plan and the time at which it was made, right after `schedule()`.
        seed: of the draws from the cost's scatter, one for each plan that has tokens.
        speculation: drafts; the scheduler must have been made with the same `speculative_config`.

    Raises ValueError where the cost has other stages than the parts, and for speculation with a pipeline.
    """

    def __init__(
        self,
        parts: SimParts,
        cost: StepCost | PipelineCost,
        metrics: ServingMetrics,
        observe: Callable[[Any, float], None] | None = None,
        seed: int = 0,
        speculation: Speculation | None = None,
    ) -> None:
        self.parts = parts
        self.cost = cost
        self.metrics = metrics
        self.now = 0.0
        self.num_preemptions = 0
        self.speculation = speculation
        self._observe = observe
        self._random = random.Random(seed)
        self._live: dict[str, Live] = {}
        self._queue: deque[_Batch] = deque()  # newest left, as upstream
        self._device_free = 0.0  # when the device is through with all it was given
        stages = parts.pipeline_parallel_size
        priced = cost.pipeline_parallel_size if isinstance(cost, PipelineCost) else 1
        if priced != stages:
            raise ValueError(
                f"pipeline_parallel_size {stages}: the cost {cost.name!r} is one of {priced} stages"
            )
        if stages > 1 and speculation is not None:
            raise ValueError(f"speculative_config does not go with pipeline_parallel_size {stages}")
        self._stages_free = [0.0] * stages  # likewise, each stage; for a pipeline
        self._stage_times = (
            cost.stage_times if isinstance(cost, PipelineCost) and stages > 1 else None
        )
        self._queue_size = BATCH_QUEUE_SIZE if parts.async_scheduling else stages
        self._turn = self._turn_queue if self._queue_size > 1 else self._turn_sync

    def run(self, requests: Iterable[SimRequest]) -> None:
        """Run until every request has ended.

        Requests are taken one at a time, in the order of their arrival, when the clock gets there.
        Raises ValueError if they are out of order, RuntimeError if the scheduler plans nothing for ever.
        """
        scheduler, turn = self.parts.scheduler, self._turn
        coming = iter(requests)
        following = next(coming, None)
        with frozen_garbage():
            while True:
                while following is not None and following.arrival <= self.now:
                    self.add(following)
                    before, following = following, next(coming, None)
                    if following is not None and following.arrival < before.arrival:
                        raise ValueError(
                            f"request {following.request_id!r} arrives at {following.arrival}, "
                            f"before the one in front of it, at {before.arrival}"
                        )
                self.metrics.settle(self.now)
                if self._queue or scheduler.has_unfinished_requests():
                    turn()
                elif following is None:
                    return
                else:
                    self.now = following.arrival

    def result(self) -> dict[str, Any]:
        """The figures of the run."""
        return self.metrics.result(self.num_preemptions)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._queue) or self.parts.scheduler.has_unfinished_requests()

    def step(self) -> None:
        """One turn of the loop; for a caller that keeps the clock's order itself (`fleet.py`)."""
        self._turn()

    def add(self, q: SimRequest) -> None:
        """Give a request that has arrived to the scheduler, or write down that it was refused."""
        self.now += self.cost.add_request_s
        try:
            request = self.parts.make_request(q)
            self.parts.scheduler.add_request(request)
        except ValueError as error:
            self.metrics.refused(q.arrival, str(error))
            return
        live = Live(request, q.arrival, len(q.prompt), q.prompt[-1])
        self._live[q.request_id] = live
        self.metrics.arrived(live)

    def _turn_sync(self) -> None:
        """Schedule, execute, update: one after the other (`vllm/v1/engine/core.py:428`)."""
        batch = self._plan()
        if not batch.req_ids and not batch.plan.preempted_req_ids:
            raise RuntimeError(f"nothing was scheduled, at {self.now} s, and requests are left")
        self.now = batch.done
        self._take_in(batch)

    def _turn_queue(self) -> None:
        """One turn with the queue: another batch if there is room, else the oldest one's results
        (`vllm/v1/engine/core.py:469`)."""
        queue, scheduler = self._queue, self.parts.scheduler
        # `has_requests` upstream: finished ones count until a plan has told the worker of them.
        if scheduler.has_unfinished_requests() or scheduler.finished_req_ids:
            batch = self._plan()
            queue.appendleft(batch)
            if batch.req_ids and len(queue) < self._queue_size and queue[-1].done > self.now:
                return
            idle = not any(b.req_ids or b.plan.preempted_req_ids for b in queue)
            if idle and scheduler.has_unfinished_requests():
                raise RuntimeError(f"nothing was scheduled, at {self.now} s, and requests are left")
        oldest = queue.pop()
        self.now = max(self.now, oldest.done)
        self._take_in(oldest)

    def _plan(self) -> _Batch:
        """Plan a step and hand it to the device. Moves the clock by what the host does."""
        scheduler = self.parts.scheduler
        plan = scheduler.schedule()
        if self._observe is not None:
            self._observe(plan, self.now)
        requests = scheduler.requests
        work = work_of(plan, requests)
        req_ids = list(plan.num_scheduled_tokens)
        samples = self._samples([requests[req_id] for req_id in req_ids])
        self.num_preemptions += len(plan.preempted_req_ids or ())
        factor = self._factor() if work.num_tokens else 1.0
        times = self._stage_times(work) if self._stage_times is not None else ()
        if times:  # a stage's part of the whole: they work side by side
            device = factor * sum([time.busy for time in times]) / len(times)
        else:
            device = factor * self.cost.device(work)
        num_draft_tokens = 0
        if self.speculation is not None:
            num_draft_tokens = self._num_draft_tokens(self.speculation)
            device += factor * self.speculation.drafting(work, num_draft_tokens)
        cached = sum([new.num_computed_tokens for new in plan.scheduled_new_reqs])
        self.metrics.planned(work, device, cached)
        self.metrics.state(
            self.now,
            len(scheduler.running),
            # Two queues that vLLM's scheduler has, too: it may run here.
            len(scheduler.waiting) + len(scheduler.skipped_waiting),
            scheduler.kv_cache_manager.usage,
        )
        self.now += factor * self.cost.host(work)
        if times:
            return _Batch(plan, req_ids, samples, self._go_through(times, factor))
        begin = max(self.now, self._device_free)
        # From the first launch on the device computes, and it cannot end before the last.
        self.now += factor * self.cost.launching(work)
        self._device_free = max(begin + device, self.now)
        return _Batch(plan, req_ids, samples, self._device_free, num_draft_tokens)

    def _go_through(self, times: Sequence[StageTime], factor: float) -> float:
        """A step's way through the stages, each of which takes it when it is through with the one before.
        Returns when the last is through."""
        there = self.now
        for stage, (busy, hand_over) in enumerate(times):
            done = max(there, self._stages_free[stage]) + factor * busy
            self._stages_free[stage] = done
            there = done + factor * hand_over
        return there

    def _num_draft_tokens(self, speculation: Speculation) -> int:
        """Drafts a request for the next step; a plan that is made ahead has placeholders for all."""
        if self.parts.async_scheduling:
            return speculation.config.num_spec_tokens
        return speculation.num_draft_tokens(self.parts.scheduler)

    def _factor(self) -> float:
        """How much longer than expected this step takes."""
        scatter = self.cost.scatter
        return self._random.choice(scatter) if scatter else 1.0

    def _samples(self, planned: list[Any]) -> list[bool]:
        """Which of the requests just planned get a token of it: those whose prompt is through.

        With results still to come a request does not know its length. So an asynchronous scheduler
        keeps the answer, `is_prefill_chunk`; for a synchronous one the two counters tell.
        """
        if self.parts.async_scheduling:
            return [not request.is_prefill_chunk for request in planned]
        return [request.num_computed_tokens >= request.num_tokens for request in planned]

    def _take_in(self, batch: _Batch) -> None:
        """The tokens are there: tell the scheduler, and write down which requests got one and which ended."""
        live, scheduler = self._live, self.parts.scheduler
        sampled: list[list[int]] = []
        lives: list[Live] = []
        for req_id, samples in zip(batch.req_ids, batch.samples, strict=True):
            one = live.get(req_id)  # None: it ended while this was in flight, the row is wasted
            if samples and one is not None:
                sampled.append([one.token])
                lives.append(one)
            else:
                sampled.append([])
        if self.speculation is not None:
            self._accept_drafts(self.speculation, batch, sampled)
        scheduler.update_from_output(batch.plan, self.parts.make_output(batch.req_ids, sampled))
        if self.speculation is None:
            self.metrics.tokens(lives, self.now)
        else:  # what was accepted past the end does not count
            counts = [one.request.num_output_tokens - one.made for one in lives]
            self.metrics.tokens(lives, self.now, counts)
            if not self.parts.async_scheduling:
                self._hand_over_drafts(lives, batch.num_draft_tokens)
        requests = scheduler.requests
        for one in lives:
            req_id = one.request.request_id
            if req_id not in requests:
                del live[req_id]
                self.metrics.finished(one)

    def _accept_drafts(
        self, speculation: Speculation, batch: _Batch, sampled: list[list[int]]
    ) -> None:
        """Put the drafts that are accepted in front of the tokens that were sampled."""
        drafts = batch.plan.scheduled_spec_decode_tokens
        for req_id, tokens in zip(batch.req_ids, sampled, strict=True):
            if tokens and req_id in drafts:
                tokens *= 1 + speculation.judge(req_id, len(drafts[req_id]))

    def _hand_over_drafts(self, lives: list[Live], num_draft_tokens: int) -> None:
        """Tell the scheduler what was drafted (`vllm/v1/engine/core.py:463 in EngineCore.post_step`)."""
        req_ids = [one.request.request_id for one in lives]
        drafts = [[one.token] * num_draft_tokens for one in lives]
        self.parts.scheduler.update_draft_token_ids(DraftTokenIds(req_ids, drafts))


@contextmanager
def frozen_garbage() -> Iterator[None]:
    """What is there before the run is not its garbage. vLLM freezes its heap at start-up as well, after a
    collection. Here there is none before, because it can take longer than a short run."""
    if _frozen_by_others():  # what froze the heap before sets it free again
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@cache
def _frozen_by_others() -> bool:
    """Whether the heap was frozen before the first run. Asked once, because each answer counts the frozen
    objects one by one, which can take longer than a short run, too."""
    return gc.get_freeze_count() > 0
