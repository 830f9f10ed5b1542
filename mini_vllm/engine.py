"""The engine: a core that schedules and computes, and a front end that speaks text.

Mirrors `vllm/v1/engine/core.py` (`EngineCore` 94, `step` 428) and `vllm/v1/engine/llm_engine.py`
(`add_request` 209, `step` 287). Upstream the two halves are usually two processes; here they are two
objects, and the core's `step` runs when the front end's does.

The parts are handed in (`EngineParts`), so that a learner's own scheduler or block pool can run in
the place of ours.

Left out: process boundaries, data parallelism. Asynchronous scheduling has its loop in
`batch_queue.py`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mini_vllm.async_scheduler import AsyncScheduler
from mini_vllm.attention import TiledAttention
from mini_vllm.attention.registry import get_backend
from mini_vllm.batch_queue import BatchQueue, TakenIn, never_done_early
from mini_vllm.block_pool import BlockPool
from mini_vllm.checkpoint import get_model
from mini_vllm.config import DEFAULT_MODEL as DEFAULT_MODEL
from mini_vllm.config import EngineConfig
from mini_vllm.cudagraph import CudagraphDispatcher, GraphRunner
from mini_vllm.engine_args import EngineArgs
from mini_vllm.executor import UniProcExecutor
from mini_vllm.input_processor import EngineCoreRequest, InputProcessor, PromptType
from mini_vllm.kv_cache_manager import KVCacheManager, cdiv
from mini_vllm.llama import AttentionBackend, LlamaForCausalLM
from mini_vllm.memory import check_memory
from mini_vllm.metrics import EngineMetrics, Metric
from mini_vllm.model_runner import ModelRunner
from mini_vllm.output_processor import OutputProcessor, ParentRequest, RequestState
from mini_vllm.outputs import RequestOutput
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.quantization.kv_cache import page_size_bytes
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.sched_output import EngineCoreOutput, ModelRunnerOutput
from mini_vllm.scheduler import Scheduler
from mini_vllm.stats import StepRecord as StepRecord
from mini_vllm.surface import missing_attribute, take_harmless
from mini_vllm.tokenizer import Tokenizer


class EngineDeadError(RuntimeError):
    """A step failed half-way, and the engine's state is no longer sound
    (`vllm/v1/engine/exceptions.py:9 EngineDeadError`)."""


@dataclass(frozen=True)
class EngineParts:
    """What the engine is made of: one constructor a part, called as the default's is.

    Attributes:
        block_pool: `(num_gpu_blocks, enable_caching)`.
        kv_cache_manager: `(num_gpu_blocks, block_size, max_model_len, enable_caching, block_pool)`.
        scheduler: `(config, kv_cache_manager)`. With `async_scheduling` the default stands for
            `AsyncScheduler`, and another must be one too.
        sampler: `(seed)`.
        attention: `()`; only for a model that the engine loads: a loaded one has its own. The
            default stands for the backend that `EngineConfig.attention` names.
        graph_runner: `(kernels, runtime_mode, counter, pool)`; only where `cudagraph_mode` asks for graphs.
        cudagraph_dispatcher: `(cudagraph_mode, capture_sizes, max_num_seqs)`; likewise.
        done_early: `(future)`, with `async_scheduling`: is the result of the only plan in flight there
            already, and to be taken in before a second is made? vLLM asks `Future.done`, right after
            it has begun. By default nobody asks, so equal requests are planned equally in every run.
    """

    block_pool: Callable[..., BlockPool] = BlockPool
    kv_cache_manager: Callable[..., KVCacheManager] = KVCacheManager
    scheduler: Callable[..., Scheduler] = Scheduler
    sampler: Callable[..., Sampler] = Sampler
    attention: Callable[[], AttentionBackend] = TiledAttention
    graph_runner: Callable[..., GraphRunner] = GraphRunner
    cudagraph_dispatcher: Callable[..., CudagraphDispatcher] = CudagraphDispatcher
    done_early: Callable[[Future[ModelRunnerOutput]], bool] = never_done_early


DEFAULT_PARTS = EngineParts()


def resolve_config(
    config: EngineConfig, model: LlamaForCausalLM, tokenizer: Tokenizer | None = None
) -> EngineConfig:
    """Fill in what depends on the model: `max_model_len`, `num_gpu_blocks` and `kv_cache_dtype`.

    The longest request is what positions and tokenizer allow
    (`vllm/config/model.py:2119 _get_and_verify_max_len`).

    Raises ValueError if `max_model_len` is more than the model was made for, if the memory holds
    fewer than 2 blocks, or if the settings ask for more memory than there is.
    """
    limit = model.config.max_model_len
    if tokenizer is not None and tokenizer.model_max_length is not None:
        limit = min(limit, tokenizer.model_max_length)
    max_model_len = config.max_model_len or limit
    if max_model_len > limit:
        raise ValueError(
            f"max_model_len ({max_model_len}) is greater than what the model was made for "
            f"({limit} tokens)"
        )
    config = dataclasses.replace(config, max_model_len=max_model_len)
    if config.kv_cache_dtype == "auto":  # a checkpoint may turn a cache in 8 bits on
        quantization = get_quantization_config(model.config.quantization_config)
        config = dataclasses.replace(config, kv_cache_dtype=quantization.kv_cache_dtype)
    if config.num_gpu_blocks is None:
        page = page_size_bytes(model.config, config.block_size, config.kv_cache_dtype)
        num_gpu_blocks = config.kv_cache_memory_bytes // page
        if num_gpu_blocks < 2:
            raise ValueError(
                f"kv_cache_memory_bytes ({config.kv_cache_memory_bytes}) holds {num_gpu_blocks} "
                f"blocks of {page} bytes; at least 2 are needed"
            )
        # No use for more than all running requests can fill.
        most = config.max_num_seqs * cdiv(max_model_len, config.block_size) + 1
        config = dataclasses.replace(config, num_gpu_blocks=min(num_gpu_blocks, most))
    check_memory(config, model.config)
    return config


class EngineCore:
    """Scheduler and model runner, and the loop body that joins them.

    Args:
        model: the model to run.
        config: with `num_gpu_blocks` and `max_model_len` set; see `resolve_config`.
        parts: the parts to use. `parts.attention` is not used here: the model has its backend.
    """

    def __init__(
        self, model: LlamaForCausalLM, config: EngineConfig, parts: EngineParts = DEFAULT_PARTS
    ) -> None:
        self.config = config
        assert config.num_gpu_blocks is not None and config.max_model_len is not None
        # First what may not fit into memory, and says so; a block's bookkeeping comes after.
        backend = get_backend(config.attention)
        runner_cls: Callable[..., ModelRunner] = backend.get_model_runner_cls()
        if config.cudagraph_mode != "NONE":
            graph_parts = {n: getattr(parts, n) for n in ("graph_runner", "cudagraph_dispatcher")}
            runner_cls = partial(backend.get_graph_model_runner_cls(), **graph_parts)
        self.model_runner = runner_cls(model, config, parts.sampler(config.seed))
        self.kv_cache_manager = parts.kv_cache_manager(
            config.num_gpu_blocks,
            config.block_size,
            config.max_model_len,
            config.enable_prefix_caching,
            parts.block_pool(config.num_gpu_blocks, config.enable_prefix_caching),
        )
        ahead = config.async_scheduling
        make = AsyncScheduler if ahead and parts.scheduler is Scheduler else parts.scheduler
        self.scheduler = make(config, self.kv_cache_manager)
        self.batch_queue: BatchQueue | None = None
        if ahead:
            if not isinstance(self.scheduler, AsyncScheduler):
                raise ValueError(
                    f"parts.scheduler makes a {type(self.scheduler).__name__}, and async_scheduling "
                    "needs an AsyncScheduler: it plans a step before it knows the last one's tokens"
                )
            executor = UniProcExecutor(self.model_runner, max_concurrent_batches=2)
            self.batch_queue = BatchQueue(self.scheduler, executor, parts.done_early)
        self.step_observers: list[Callable[[StepRecord], None]] = []
        self.num_steps = 0
        self.error: BaseException | None = None

    def add_request(self, request: Request) -> None:
        self.scheduler.add_request(request)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

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
        """The loop's body: `step`, or with asynchronous scheduling `step_with_batch_queue`."""
        return self.step if self.batch_queue is None else self.step_with_batch_queue

    def step_with_batch_queue(self) -> list[EngineCoreOutput]:
        """A turn of the batch queue. Nothing comes of one that only plans.

        Raises EngineDeadError if an earlier step failed.
        Source: `vllm/v1/engine/core.py:469 EngineCore.step_with_batch_queue`."""
        assert self.batch_queue is not None, "the engine was made without async_scheduling"
        if self.error is not None:
            raise EngineDeadError(f"the engine died in an earlier step: {self.error!r}")
        try:
            taken_in = self.batch_queue.turn()
            if taken_in is None:
                return []
            return self._tell_observers(taken_in)
        except BaseException as error:
            self.error = error
            raise

    def _step(self) -> list[EngineCoreOutput]:
        t0 = time.perf_counter()
        scheduler_output = self.scheduler.schedule()
        t1 = time.perf_counter()
        model_output = self.model_runner.execute_model(scheduler_output)
        t2 = time.perf_counter()
        outputs = self.scheduler.update_from_output(scheduler_output, model_output)
        times = (t1 - t0, t2 - t1, time.perf_counter() - t2)
        return self._tell_observers((scheduler_output, model_output, outputs, *times))

    def _tell_observers(self, taken_in: TakenIn) -> list[EngineCoreOutput]:
        """A step is over; returns its outputs. `taken_in`: its `StepRecord` from the second field on."""
        self.num_steps += 1
        if self.step_observers:
            record = StepRecord(self.num_steps, *taken_in, self.scheduler.make_stats())
            for observer in self.step_observers:
                observer(record)
        return taken_in[2]


class LLMEngine:
    """The synchronous engine: add requests at any time, call `step` until none is left.

    Args:
        model: a checkpoint folder (default: the shipped one), or a loaded model.
        config: the engine's settings.
        tokenizer: default: the folder's. None if `model` is a loaded model: then prompts are token
            ids and outputs have no text.
        parts: the engine's parts, for instance a learner's own.
        log_stats: count: `RequestOutput.metrics` and `get_metrics` have something to tell.

    Raises ValueError where folder, config or their combination is not usable.
    Source: `vllm/v1/engine/llm_engine.py:47 LLMEngine`.
    """

    def __init__(
        self,
        model: str | Path | LlamaForCausalLM = DEFAULT_MODEL,
        config: EngineConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        parts: EngineParts = DEFAULT_PARTS,
        log_stats: bool = False,
    ) -> None:
        config = config or EngineConfig()
        name = str(model) if isinstance(model, str | Path) else ""
        own = None if parts.attention is DEFAULT_PARTS.attention else parts.attention
        self.model = model = get_model(model, config.attention, own)
        self.tokenizer = tokenizer = tokenizer or (Tokenizer.from_folder(name) if name else None)
        self.config = resolve_config(config, model, tokenizer)
        self.engine_core = EngineCore(model, self.config, parts)
        self.input_processor = InputProcessor(
            self.config, model.config.vocab_size, tokenizer, model.config.eos_token_ids
        )
        self.output_processor = OutputProcessor(tokenizer)
        self.metrics: EngineMetrics | None = None
        if log_stats:
            core = self.engine_core
            self.metrics = EngineMetrics(core.config, core.scheduler, core.kv_cache_manager, name)
            core.step_observers.append(self._observe_step)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **kwargs: Any) -> Self:
        """An engine from vLLM's form of the settings
        (`vllm/v1/engine/llm_engine.py:152 LLMEngine.from_engine_args`).

        `kwargs` are the constructor's others, such as `parts`.
        """
        log_stats = not engine_args.disable_log_stats
        config = engine_args.create_engine_config()
        return cls(engine_args.model, config, log_stats=log_stats, **kwargs)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        arrival_time: float | None = None,
        priority: int = 0,
        **unused: Any,
    ) -> str:
        """Check a request and queue it; nothing is computed yet. Returns its id.

        With `n > 1` it becomes `n` requests in the core.

        Raises TypeError or ValueError, and has then changed nothing: a duplicate id, a prompt or
        parameter that is not valid, a request that the KV cache could never hold.
        """
        take_harmless("generate", unused, "LLMEngine.add_request", ("priority", "arrival_time"))
        return self.add_core_request(
            self.input_processor.process_inputs(request_id, prompt, params, arrival_time, priority)
        )

    def add_core_request(self, core_request: EngineCoreRequest) -> str:
        """Queue a request that `InputProcessor.process_inputs` made. Returns its id.

        Raises ValueError, and has then changed nothing: an id in use, a request that the KV cache
        could never hold.
        """
        request_id, processed = core_request.request_id, core_request.prompt
        params = core_request.sampling_params
        parent = ParentRequest(request_id, params) if params.n > 1 else None
        children = [(request_id, params)]
        if parent is not None:
            children = [parent.get_child_info(index) for index in range(params.n)]
        for taken in (request_id, *(child_id for child_id, _ in children)):
            if self.output_processor.is_taken(taken):
                raise ValueError(f"request id {taken!r} is already in use")
        for index, (child_id, child_params) in enumerate(children):
            request = self.input_processor.make_request(
                child_id,
                processed,
                child_params,
                core_request.arrival_time,
                core_request.priority,
            )
            # If the core refuses, it refuses the first child: with ids known to be free, they
            # differ in nothing that it looks at.
            self.engine_core.add_request(request)
            state = RequestState(
                child_id,
                processed.text,
                processed.token_ids,
                child_params,
                self.tokenizer,
                parent,
                index,
            )
            if self.metrics is not None:
                state.stats = self.metrics.add_request(
                    child_id, core_request.arrival_time, len(processed.token_ids)
                )
            self.output_processor.add_request(state)
        return request_id

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests at once and free their blocks; they give no further output.

        Raises ValueError naming the first id that is not known (never added, or finished), after
        the others have been aborted.
        """
        unknown = None
        for request_id in [request_ids] if isinstance(request_ids, str) else list(request_ids):
            if self.output_processor.has_request(request_id):
                child_ids = self.output_processor.abort_request(request_id)
                self.engine_core.abort_requests(child_ids)
                if self.metrics is not None:
                    self.metrics.forget(child_ids)
            elif unknown is None:
                unknown = request_id
        if unknown is not None:
            raise ValueError(
                f"request id {unknown!r} is not known: it was never added or has finished"
            )

    def step(self) -> list[RequestOutput]:
        """One iteration: schedule, compute, sample, update, detokenize. The outputs it brought."""
        core_outputs = self.engine_core.step_fn()
        processed = self.output_processor.process_outputs(core_outputs)
        if processed.reqs_to_abort:  # a stop string was found: the core does not know yet
            self.engine_core.abort_requests(processed.reqs_to_abort)
        while self.engine_core.batch_queue and not self.has_unfinished_requests():
            self.engine_core.step_fn()  # nobody waits for what is in flight: the worker comes to rest
        if self.metrics is not None:
            self.metrics.observe_outputs(processed.request_outputs)
        return processed.request_outputs

    def _observe_step(self, record: StepRecord) -> None:
        assert self.metrics is not None
        seconds = record.execute_time + record.update_time
        self.metrics.observe_step(
            record.scheduler_output, record.outputs, record.scheduler_stats, seconds
        )

    def get_metrics(self) -> list[Metric]:
        """Every number the engine counts (`vllm/v1/engine/llm_engine.py:369 LLMEngine.get_metrics`).

        Raises ValueError if it was told not to count; vLLM has an assertion there.
        """
        if self.metrics is None:
            raise ValueError("Stat logging disabled: start the engine with disable_log_stats=False")
        return self.metrics.snapshot()

    def get_tokenizer(self) -> Tokenizer | None:
        return self.tokenizer

    def has_unfinished_requests(self) -> bool:
        return self.engine_core.scheduler.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        return self.engine_core.scheduler.get_num_unfinished_requests()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while requests hold blocks."""
        return self.engine_core.kv_cache_manager.reset_prefix_cache()

    def stream(
        self, prompt: PromptType, params: SamplingParams, request_id: str = "0"
    ) -> Iterator[RequestOutput]:
        """Add a request and yield its outputs as they come; leaving the loop aborts it.

        For an engine that has nothing else to do: outputs of other requests are dropped.
        """
        self.add_request(request_id, prompt, params)
        states = self.output_processor.request_states
        # By object, not by id: the id may be free, and taken again, before this loop ends.
        mine = [s for s in states.values() if request_id in (s.request_id, s.external_id)]

        def alive() -> bool:
            return any(states.get(state.request_id) is state for state in mine)

        try:
            while alive():
                yield from (o for o in self.step() if o.request_id == request_id)
        finally:
            if alive():
                self.abort_request(request_id)

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing_attribute("LLMEngine", name)
