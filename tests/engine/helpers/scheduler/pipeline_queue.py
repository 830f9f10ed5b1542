"""A scheduler with several plans in flight, as with a pipeline: vLLM's own loop over vLLM's own scheduler,
or `mini_vllm`'s over its own.

The executor is pretended. It has a result when that is asked for and never before, as
`vllm/v1/executor/multiproc_executor.py:69 FutureWrapper` has it, and samples
`course.parity.traces.token`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from course.parity.decisions import mini_parts
from course.parity.record import vllm_parts
from course.parity.traces import Parts, Run, Workload, token
from mini_vllm.engine.batch_queue import BatchQueue

TURNS = 20_000


class Later(Future):  # type: ignore[type-arg]
    """A result that is there when it is asked for, and not before."""

    execute_time = 0.0

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._value = value

    def done(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> Any:
        return self._value


class PipelineRun(Run):
    """A workload with `size` plans in flight. `log` has what was decided, and what taking results in changed.

    It is the executor, too. What a request samples is settled when its plan is made: it is not planned again
    before that is known, unless more of its prompt is to be computed first, or it was preempted.

    Attributes:
        empty: plans without a token.
        planned_twice: how often a request was planned that was to sample in a plan in flight.
    """

    def __init__(self, workload: Workload, parts: Parts, size: int) -> None:
        super().__init__(workload, parts)
        self.max_concurrent_batches = size
        self.log: list[tuple[Any, ...]] = []
        self.empty = self.planned_twice = 0
        self._in_flight: deque[set[str]] = deque()  # who is to sample, newest plan first
        self._result: Any = None
        update = parts.scheduler.update_from_output

        def take_in(plan: Any, output: Any) -> Any:
            outputs = update(plan, output)
            self._in_flight.pop()
            ids = list(plan.num_scheduled_tokens)
            ended = {i: self.live[i].status.name for i in ids if self.live[i].is_finished()}
            self.log.append(("update", ended, *self._state()))
            return outputs

        parts.scheduler.update_from_output = take_in

    def _state(self) -> tuple[list[str], int]:
        scheduler = self.parts.scheduler
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return [request.request_id for request in scheduler.running], free

    def execute_model(self, plan: Any, non_block: bool = False) -> Any:
        live, ids = self.live, list(plan.num_scheduled_tokens)
        blocks = {i: self.parts.block_ids(i) for i in ids}
        preempted = sorted(plan.preempted_req_ids or ())
        scheduled = list(plan.num_scheduled_tokens.items())
        self.log.append(("schedule", self.step, scheduled, preempted, blocks, *self._state()))
        samples = {i for i in ids if live[i].num_computed_tokens >= live[i].num_tokens}
        self.empty += not ids
        self.planned_twice += sum(i in before for before in self._in_flight for i in ids)
        self._in_flight.appendleft(samples)
        sampled = [[token(self._index[i], live[i].num_tokens)] if i in samples else [] for i in ids]
        self._result = self.parts.make_output(ids, sampled)
        return Later(None if ids else self._result)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        return Later(self._result)

    def play(self, step: Callable[[], Any], batches: deque[Any]) -> None:
        """Turn after turn, until nothing is left to do."""
        scheduler = self.parts.scheduler
        while self._pending or scheduler.has_requests() or batches:
            self.arrive()
            step()
            self.step += 1
            assert self.step < TURNS, f"seed not done after {TURNS} turns"


def play_vllm(workload: Workload, size: int) -> PipelineRun:
    """By `vllm/v1/engine/core.py:469 EngineCore.step_with_batch_queue`."""
    from vllm.v1.engine.core import EngineCore

    run = PipelineRun(workload, vllm_parts(workload["config"]), size)
    # Read once from the configuration; plans then say what the last stage has sampled
    # (`vllm/v1/core/sched/scheduler.py:1059 in Scheduler._make_cached_request_data`).
    run.parts.scheduler.use_pp = True
    core: Any = SimpleNamespace(
        scheduler=run.parts.scheduler,
        batch_queue=deque(maxlen=size),
        batch_queue_size=size,
        model_executor=run,
        is_ec_consumer=True,
        is_pooling_model=False,
        use_spec_decode=False,
        log_error_detail=lambda plan: nullcontext(),
        log_iteration_details=lambda plan: nullcontext(),
        _process_aborts_queue=lambda: None,
    )
    run.play(lambda: EngineCore.step_with_batch_queue(core), core.batch_queue)
    return run


def play_mini(workload: Workload, size: int) -> PipelineRun:
    """By `mini_vllm.engine.batch_queue.BatchQueue`."""
    run = PipelineRun(workload, mini_parts(workload["config"]), size)
    executor: Any = run
    queue = BatchQueue(run.parts.scheduler, executor, lambda future: future.done())
    run.play(queue.step, queue.batches)
    return run
