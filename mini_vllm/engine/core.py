"""The engine's core: schedule, compute, update.

Mirrors `vllm/v1/engine/core.py` (`EngineCore` 94, `step` 428). Left out: process boundaries, data
parallelism. Asynchronous scheduling has its loop in `batch_queue.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.request import EngineCoreRequest, Request, RequestStatus
from mini_vllm.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_vllm.engine.build import make_executor, make_grammars, make_kv_cache_manager
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.engine.step_record import StepRecord, StepResult
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.worker.model_runner import ModelRunner

if TYPE_CHECKING:
    from mini_vllm.core.sched.grammars import Grammars
    from mini_vllm.engine.batch_queue import BatchQueue
    from mini_vllm.lora.request import LoadedLoRARequest


class EngineDeadError(RuntimeError):
    """A step failed half-way, and the engine's state is no longer sound
    (`vllm/v1/engine/exceptions.py:9 EngineDeadError`)."""


class EngineCore:
    """Scheduler and model runner, and the loop body that joins them.

    Args:
        model: the model to run.
        config: with `num_gpu_blocks` and `max_model_len` set; see `mini_vllm.engine.build.resolve_config`.
        parts: the parts to use. `parts.attention` is not used here: the model has its backend.
        tokenizer: for grammars, or a function that gives it; None: no request may have a rule.
    """

    def __init__(
        self,
        model: ModelForTextGeneration,
        config: ResolvedConfig,
        parts: EngineParts = DEFAULT_PARTS,
        tokenizer: Any = None,
    ) -> None:
        self.config = config
        model.set_max_model_len(config.max_model_len)
        self.use_spec_decode = config.speculation is not None
        # First what may not fit into memory, and says so; a block's bookkeeping comes after.
        self.model_executor = make_executor(model, config, parts)
        try:
            self._complete(model, parts, tokenizer)
        except BaseException:
            self.model_executor.shutdown()
            raise

    def _complete(self, model: ModelForTextGeneration, parts: EngineParts, tokenizer: Any) -> None:
        """Everything but the executor. What fails here leaves no process behind."""
        config = self.config
        self.kv_cache_manager = make_kv_cache_manager(model, config, parts)
        self.scheduler = parts.make_scheduler(config, self.kv_cache_manager)
        self.grammars: Grammars | None = None  # made for the first request with a rule
        vocab_size = model.config.vocab_size
        self.make_grammars = partial(make_grammars, self.scheduler, config, vocab_size, tokenizer)
        self.batch_queue: BatchQueue | None = None
        if self.model_executor.max_concurrent_batches > 1:
            from mini_vllm.core.sched.async_scheduler import AsyncScheduler
            from mini_vllm.engine.batch_queue import BatchQueue

            if config.async_scheduling and not isinstance(self.scheduler, AsyncScheduler):
                raise ValueError(
                    f"parts.scheduler makes a {type(self.scheduler).__name__}, and async_scheduling "
                    "needs an AsyncScheduler: it plans a step before it knows the last one's tokens"
                )
            self.batch_queue = BatchQueue(self.scheduler, self.model_executor, parts.done_early)
        self.step_observers: list[Callable[[StepRecord], None]] = []
        self.num_steps = 0
        self.error: BaseException | None = None
        self.failure_observers: list[Callable[[], None]] = []
        self.model_executor.register_failure_callback(self._note_failure)

    @property
    def model_runner(self) -> ModelRunner:
        """The runner of a worker in this process."""
        runner = getattr(self.model_executor, "model_runner", None)
        if runner is None:
            raise AttributeError("the model runners are in the ranks' processes")
        assert isinstance(runner, ModelRunner)
        return runner

    def _note_failure(self, error: BaseException) -> None:
        """A worker has ended, maybe while nothing was asked of it; called by a thread of the executor's."""
        if self.error is None:
            self.error = error
        for observer in self.failure_observers:
            observer()

    def shutdown(self) -> None:
        """End the workers that are processes of their own
        (`vllm/v1/engine/core.py:597 EngineCore.shutdown`)."""
        if self.grammars is not None:
            self.grammars.shutdown()
        self.model_executor.shutdown()

    def preprocess_add_request(self, request: EngineCoreRequest) -> Request:
        """The core's `Request`, whose rule, if it has one, is being compiled
        (`vllm/v1/engine/core.py:794 EngineCore.preprocess_add_request`)."""
        caching = self.config.enable_prefix_caching
        made = Request.from_engine_core_request(
            request, self.config.block_size if caching else None
        )
        if request.sampling_params.structured_outputs is not None:
            self.grammars = self.grammars or self.make_grammars()
            self.grammars.init(made)
        return made

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises ValueError if one of its id was aborted and a step with it is still in the
        pipeline: that step's token would be taken for the new one's."""
        queue = self.batch_queue
        if queue and not self.config.async_scheduling and queue.holds(request.request_id):
            raise ValueError(
                f"request id {request.request_id!r} was aborted and is still in a step in flight: take "
                "another"
            )
        self.scheduler.add_request(request)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached prefixes; False, and nothing done, while requests hold blocks.

        With `reset_running_requests` those lose their blocks first, and compute everything again. There
        is no connector to reset: asked to, it says False, as upstream without one
        (`vllm/v1/core/sched/scheduler.py:1896 Scheduler.reset_prefix_cache`).
        """
        if reset_running_requests:
            done = self.scheduler.reset_prefix_cache(reset_running_requests=True)
        else:
            done = self.kv_cache_manager.reset_prefix_cache()
        return done and not reset_connector

    def add_lora(self, lora_request: LoadedLoRARequest) -> None:
        """Have the worker take an adapter in, between two steps
        (`vllm/v1/engine/core.py:763 EngineCore.add_lora`)."""
        self._ask_worker("add_lora", lora_request)

    def list_loras(self) -> set[int]:
        """The ids of the adapters in memory (`vllm/v1/engine/core.py:769 EngineCore.list_loras`)."""
        return set(self._ask_worker("list_loras"))

    def _ask_worker(self, method: str, *args: Any) -> Any:
        """Where steps are carried out by a thread, behind those that it has been given."""
        threaded = self.batch_queue is not None
        answer = self.model_executor.collective_rpc(method, args, threaded, single_value=True)
        return answer.result() if threaded else answer

    def step(self) -> list[EngineCoreOutput]:
        """Schedule, execute, update.

        Raises EngineDeadError if an earlier step failed.
        Source: `vllm/v1/engine/core.py:428 EngineCore.step`."""
        if self.error is not None:
            raise EngineDeadError(f"the engine died in an earlier step: {self.error!r}")
        if not self.scheduler.has_unfinished_requests():
            return []
        try:
            return self._step()
        except BaseException as error:
            # The counters have advanced for tokens that were not computed: nothing after this
            # could be trusted.
            self.error = error
            raise

    @property
    def step_fn(self) -> Callable[[], list[EngineCoreOutput]]:
        """The loop's body: `step`, or with asynchronous scheduling or a pipeline `step_with_batch_queue`."""
        return self.step if self.batch_queue is None else self.step_with_batch_queue

    def step_with_batch_queue(self) -> list[EngineCoreOutput]:
        """A turn of the batch queue. Nothing comes of one that only plans.

        Raises EngineDeadError if an earlier step failed.
        Source: `vllm/v1/engine/core.py:469 EngineCore.step_with_batch_queue`."""
        assert self.batch_queue is not None, "no plan goes ahead of another's result"
        if self.error is not None:
            raise EngineDeadError(f"the engine died in an earlier step: {self.error!r}")
        try:
            result = self.batch_queue.step()
            if result is None:
                return []
            self._tell_observers(result)
            return result.outputs
        except BaseException as error:
            self.error = error
            raise

    def _step(self) -> list[EngineCoreOutput]:
        t0 = time.perf_counter()
        scheduler_output = self.scheduler.schedule()
        t1 = time.perf_counter()
        result, rows = self._execute_model(scheduler_output)
        model_output = self.model_executor.sample_tokens(rows) if result is None else result
        t2 = time.perf_counter()
        outputs = self.scheduler.update_from_output(scheduler_output, model_output)
        if self.use_spec_decode:
            self._update_drafts(scheduler_output)
        t3 = time.perf_counter()
        self._tell_observers(
            StepResult(scheduler_output, model_output, outputs, t1 - t0, t2 - t1, t3 - t2)
        )
        return outputs

    def _execute_model(self, scheduler_output: SchedulerOutput) -> tuple[Any, Any]:
        """Run the model. Where requests have rules, the rows that its sampler needs are filled meanwhile."""
        if self.grammars is None:
            return self.model_executor.execute_model(scheduler_output), None
        return self.grammars.execute_model(self.model_executor.execute_model, scheduler_output)

    def _update_drafts(self, scheduler_output: SchedulerOutput) -> None:
        """Hand the scheduler what was drafted in a step, for the next one's plan
        (`vllm/v1/engine/core.py:459 EngineCore.post_step`)."""
        if scheduler_output.total_num_scheduled_tokens == 0:
            return
        draft_token_ids = self.model_executor.take_draft_token_ids()
        if draft_token_ids is not None:
            self.scheduler.update_draft_token_ids(draft_token_ids)

    def _tell_observers(self, result: StepResult) -> None:
        """Count a step that is over, and hand its record to the observers."""
        self.num_steps += 1
        if self.step_observers:
            record = StepRecord.from_result(self.num_steps, result, self.scheduler.make_stats())
            for observer in self.step_observers:
                observer(record)
