"""The engine's core: schedule, compute, update.

Mirrors `vllm/v1/engine/core.py` (`EngineCore` 94, `step` 428). Left out: process boundaries, data
parallelism. Asynchronous scheduling has its loop in `batch_queue.py`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from functools import partial

from mini_vllm.attention.registry import get_backend
from mini_vllm.config.engine import DEFAULT_KV_CACHE_BYTES, EngineConfig
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_groups import block_bytes, get_kv_cache_config
from mini_vllm.core.kv_cache_interface import KVCacheConfig
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.output import EngineCoreOutput, SchedulerOutput
from mini_vllm.engine.batch_queue import BatchQueue
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.engine.step_record import StepRecord, StepResult
from mini_vllm.executor.uniproc_executor import UniProcExecutor
from mini_vllm.layers.quantization.config import get_quantization_config
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.sample.sampler import Sampler
from mini_vllm.spec_decode.loading import drafter_block_bytes
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.utils.math import cdiv
from mini_vllm.utils.memory import available_memory
from mini_vllm.worker.hybrid_model_runner import HybridModelRunner, check_hybrid
from mini_vllm.worker.memory import check_memory
from mini_vllm.worker.model_runner import ModelRunner
from mini_vllm.worker.spec_decode_runner import (
    HybridSpecDecodeModelRunner,
    SpecDecodeModelRunner,
)


class EngineDeadError(RuntimeError):
    """A step failed half-way, and the engine's state is no longer sound
    (`vllm/v1/engine/exceptions.py:9 EngineDeadError`)."""


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
    of_drafter = drafter_block_bytes(config.speculation, config.block_size, config.kv_cache_dtype)
    if config.num_gpu_blocks is None:
        page = block_bytes(model.config, config.block_size, config.kv_cache_dtype) + of_drafter
        memory = config.kv_cache_memory_bytes or default_kv_cache_bytes(
            page * (cdiv(max_model_len, config.block_size) + 1)  # and the null block
        )
        num_gpu_blocks = memory // page
        if num_gpu_blocks < 2:
            raise ValueError(
                f"kv_cache_memory_bytes ({memory}) holds {num_gpu_blocks} "
                f"blocks of {page} bytes; at least 2 are needed"
            )
        # No use for more than all running requests can fill.
        groups = get_kv_cache_config(
            model.config, config.block_size, num_gpu_blocks
        ).kv_cache_groups
        most = config.max_num_seqs * cdiv(max_model_len, config.block_size) * len(groups) + 1
        config = dataclasses.replace(config, num_gpu_blocks=min(num_gpu_blocks, most))
    check_memory(config, model.config, of_drafter)
    return config


def default_kv_cache_bytes(longest_request: int) -> int:
    """Bytes of the KV cache where no setting says how many: enough for the small models and, as memory
    allows, for one request of the greatest length, `longest_request` bytes."""
    return max(DEFAULT_KV_CACHE_BYTES, min(longest_request, available_memory() // 4))


def _hybrid_parts(
    parts: EngineParts, pool: KVCacheConfig, model: LlamaForCausalLM, config: EngineConfig
) -> EngineParts:
    """The parts, with the manager that knows this pool's groups, made as the usual one is.

    Raises ValueError for a setting, or another's part, that knows nothing of groups.
    """
    check_hybrid(model, config)
    for name in ("block_pool", "kv_cache_manager"):
        if getattr(parts, name) is not getattr(DEFAULT_PARTS, name):
            raise ValueError(
                f"parts.{name} ({getattr(parts, name)!r}) is for one KV cache group of full attention, and "
                "this model attends to a sliding window"
            )

    def make_manager(
        num_blocks: int, block_size: int, max_model_len: int, caching: bool, block_pool: BlockPool
    ) -> HybridKVCacheManager:
        budget, spec = config.token_budget, config.speculation
        use_eagle = spec is not None and spec.use_eagle()
        return HybridKVCacheManager(pool, max_model_len, budget, caching, block_pool, use_eagle)

    return dataclasses.replace(parts, kv_cache_manager=make_manager)


def make_sampler(parts: EngineParts, config: EngineConfig) -> Sampler:
    """The sampler of these parts; another's need know no mode of logprobs but the usual one."""
    if config.logprobs_mode == "raw_logprobs":
        return parts.sampler(config.seed)
    return parts.sampler(config.seed, logprobs_mode=config.logprobs_mode)


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
        pool = get_kv_cache_config(model.config, config.block_size, config.num_gpu_blocks)
        if not pool.is_plain:  # a sliding window, or several KV cache groups
            runner_cls, parts = HybridModelRunner, _hybrid_parts(parts, pool, model, config)
        spec = config.speculation
        self.use_spec_decode = spec is not None
        if spec is not None:
            hybrid = runner_cls is HybridModelRunner
            runner_cls = partial(
                HybridSpecDecodeModelRunner if hybrid else SpecDecodeModelRunner,
                make_drafter=parts.drafter,
                make_rejection_sampler=parts.rejection_sampler,
            )
        self.model_runner = runner_cls(model, config, make_sampler(parts, config))
        self.kv_cache_manager = parts.kv_cache_manager(
            config.num_gpu_blocks,
            config.block_size,
            config.max_model_len,
            config.enable_prefix_caching,
            parts.make_block_pool(config),
            **({"use_eagle": True} if spec is not None and spec.use_eagle() else {}),
        )
        ahead = config.async_scheduling
        self.scheduler = parts.make_scheduler(config, self.kv_cache_manager)
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
            result = self.batch_queue.turn()
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
        model_output = self.model_runner.execute_model(scheduler_output)
        t2 = time.perf_counter()
        outputs = self.scheduler.update_from_output(scheduler_output, model_output)
        if self.use_spec_decode:
            self._update_drafts(scheduler_output)
        t3 = time.perf_counter()
        self._tell_observers(
            StepResult(scheduler_output, model_output, outputs, t1 - t0, t2 - t1, t3 - t2)
        )
        return outputs

    def _update_drafts(self, scheduler_output: SchedulerOutput) -> None:
        """Hand the scheduler what was drafted in a step, for the next one's plan
        (`vllm/v1/engine/core.py:459 EngineCore.post_step`)."""
        if scheduler_output.total_num_scheduled_tokens == 0:
            return
        draft_token_ids = self.model_runner.take_draft_token_ids()
        if draft_token_ids is not None:
            self.scheduler.update_draft_token_ids(draft_token_ids)

    def _tell_observers(self, result: StepResult) -> None:
        """Count a step that is over, and hand its record to whoever observes."""
        self.num_steps += 1
        if self.step_observers:
            record = StepRecord.from_result(self.num_steps, result, self.scheduler.make_stats())
            for observer in self.step_observers:
                observer(record)
