"""Several batches on their way: the loop's body under asynchronous scheduling, and with a pipeline.

Mirrors `vllm/v1/engine/core.py:469 EngineCore.step_with_batch_queue`. Upstream it is a method of the core;
here it has a file, as the other body, `EngineCore.step`, is what a first reader needs.

    turn 1   plan a                        nothing is known yet
    turn 2   plan b, take in a             b was planned without a's tokens
    turn 3   plan c, take in b             ... and the worker had b before it was done with a

With a pipeline there are as many as stages, and the scheduler is the plain one, as upstream's where
asynchronous scheduling is off: a request in flight is not planned again.

What a grammar allows depends on the tokens before. Where a plan's are in flight, the model runs all the same,
and its sampling is put off until they have been taken in:

    turn 3   plan c, run its model, take in b, fill c's rows, sample c
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from mini_vllm.core.sched.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.step_record import StepResult
from mini_vllm.executor.abstract import ExecuteFuture, Executor


@dataclass(slots=True)
class Batch:
    """A plan in flight.

    Attributes:
        executed: what `execute_model` gives, None as a rule; `future`: the step's result.
        schedule_time: seconds that the plan took to make.
    """

    scheduler_output: SchedulerOutput
    executed: ExecuteFuture
    future: ExecuteFuture
    schedule_time: float


class BatchQueue:
    """The plans in flight, newest first, and the step that makes one and takes one in.

    Args:
        scheduler: an `AsyncScheduler`, or with a pipeline a `Scheduler`.
        executor: carries the plans out.
        done_early: see `EngineParts`.

    Attributes:
        plan_observers: called with each plan, and the seconds that it took to make, before it is carried out.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        done_early: Callable[[Future[ModelRunnerOutput]], bool],
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.done_early = done_early
        self.size = executor.max_concurrent_batches
        self.batches: deque[Batch] = deque(maxlen=self.size)
        self.plan_observers: list[Callable[[SchedulerOutput, float], None]] = []

    def __len__(self) -> int:
        return len(self.batches)

    def holds(self, req_id: str) -> bool:
        """Whether a plan in flight has this request."""
        return any(req_id in b.scheduler_output.num_scheduled_tokens for b in self.batches)

    def step(self) -> StepResult | None:
        """Plan a step and hand it to the worker; then, unless a second plan has room, wait for the
        oldest in flight and take it in. Returns that one.
        Source: `vllm/v1/engine/core.py:469 EngineCore.step_with_batch_queue`.

        None where nothing was taken in. Raises what carrying the plan out has raised.
        """
        deferred: Batch | None = None
        if self.scheduler.has_requests():
            start = time.perf_counter()
            scheduler_output = self.scheduler.schedule()
            schedule_time = time.perf_counter() - start
            for observer in self.plan_observers:
                observer(scheduler_output, schedule_time)
            total_num_scheduled_tokens = scheduler_output.total_num_scheduled_tokens
            executed = self.executor.execute_model(scheduler_output, non_block=True)
            planned = Batch(scheduler_output, executed, executed, schedule_time)
            grammars = self.scheduler.grammars
            if grammars is not None and grammars.is_pending(scheduler_output):
                deferred = planned
            else:
                if total_num_scheduled_tokens > 0:
                    self._sample(planned)
                elif grammars is not None and not self.batches:
                    grammars.wait()
                self.batches.appendleft(planned)
                if (
                    total_num_scheduled_tokens > 0
                    and len(self.batches) < self.size
                    and not self.done_early(self.batches[-1].future)
                ):
                    return None
        elif not self.batches:
            return None
        batch = self.batches.pop()
        batch.executed.result()  # whose error is the cause of the other's
        scheduler_output, model_output = batch.scheduler_output, batch.future.result()
        execute_time = batch.executed.execute_time
        if batch.future is not batch.executed:
            execute_time += batch.future.execute_time
        start = time.perf_counter()
        outputs = self.scheduler.update_from_output(scheduler_output, model_output)
        if deferred is not None:
            self._sample(deferred)
            self.batches.appendleft(deferred)
        update_time = time.perf_counter() - start
        return StepResult(
            scheduler_output, model_output, outputs,
            batch.schedule_time, execute_time, update_time,
        )  # fmt: skip

    def _sample(self, batch: Batch) -> None:
        """Have a plan's tokens sampled, by what grammars allow."""
        grammars = self.scheduler.grammars
        rows = None
        if grammars is not None:
            take_drafts = self.executor.take_draft_token_ids
            rows = grammars.get_grammar_bitmask(batch.scheduler_output, take_drafts)
        batch.future = self.executor.sample_tokens(rows, non_block=True)
