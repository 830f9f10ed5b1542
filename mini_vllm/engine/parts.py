"""The parts of the engine, each of which can be replaced by another.

Not in vLLM, which chooses by configuration; here a learner's own scheduler or block pool can run in the
place of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.config.scheduler import PIN
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.output import ModelRunnerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.sample.sampler import Sampler

if TYPE_CHECKING:
    from mini_vllm.attention.backend import AttentionBackend
    from mini_vllm.cudagraph import CudagraphDispatcher, GraphRunner
    from mini_vllm.distributed.kv_events import KVEventPublisher
    from mini_vllm.sample.rejection_sampler import RejectionSampler
    from mini_vllm.worker.speculation import Drafter


def wait_for_second_plan(future: Future[ModelRunnerOutput]) -> bool:
    """No result is taken in before a second plan is made: decisions then follow from the requests, not from a
    clock."""
    return False


@dataclass(frozen=True)
class EngineParts:
    """What the engine is made of: one constructor a part, called as the default's is.

    Attributes:
        block_pool: `(num_gpu_blocks, enable_caching)`.
        kv_cache_manager: `(num_gpu_blocks, block_size, max_model_len, enable_caching, block_pool)`;
            with an EAGLE head `use_eagle=True`, too.
        scheduler: `(config, kv_cache_manager)`; with `enable_lora` `admission_rules=`, too. None:
            `Scheduler`, or with `async_scheduling` `AsyncScheduler`; with that, another must be one too.
        sampler: `(seed)`.
        drafter: `(config, model)`, with `speculative_config`: what drafts. None: `worker/speculation.py
            make_drafter`, which a run without drafts does not load.
        rejection_sampler: `(sampler, speculative_config)`, likewise: what judges the drafts.
        attention: `()`; only for a model that the engine loads: a loaded one has its own. None: the
            backend that `EngineConfig.attention` names.
        graph_runner: `(kernels, runtime_mode, counter, pool)`; only where `cudagraph_mode` asks for graphs.
            None: `cudagraph/graph.py GraphRunner`, which a run without graphs does not load.
        cudagraph_dispatcher: `(cudagraph_mode, capture_sizes, max_num_seqs)`; likewise. None:
            `cudagraph/dispatcher.py CudagraphDispatcher`.
        done_early: `(future)`, with `async_scheduling`: is the result of the only plan in flight there
            already, and to be taken in before a second is made? vLLM asks `Future.done`, right after
            it has begun. By default it is not asked, so equal requests are planned equally in every run.
        kv_event_publisher: `(batch)`, after each step in which something has entered the prefix cache or
            left it. None: no events are made. In the place of vLLM's `kv_events_config`
            (`vllm/config/kv_events.py:11 KVEventsConfig`), whose publisher sends them over the network.
    """

    block_pool: Callable[..., BlockPool] = BlockPool
    kv_cache_manager: Callable[..., KVCacheManager] = KVCacheManager
    scheduler: Callable[..., Scheduler] | None = None
    sampler: Callable[..., Sampler] = Sampler
    drafter: Callable[[ResolvedConfig, ModelForTextGeneration], Drafter] | None = None
    rejection_sampler: Callable[..., RejectionSampler] | None = None
    attention: Callable[[], AttentionBackend] | None = None
    graph_runner: Callable[..., GraphRunner] | None = None
    cudagraph_dispatcher: Callable[..., CudagraphDispatcher] | None = None
    done_early: Callable[[Future[ModelRunnerOutput]], bool] = wait_for_second_plan
    kv_event_publisher: KVEventPublisher | None = None

    def make_scheduler(self, config: ResolvedConfig, kv_cache_manager: KVCacheManager) -> Scheduler:
        """The scheduler for these settings."""
        usual: Callable[..., Scheduler] = Scheduler
        if config.async_scheduling:
            from mini_vllm.core.sched.async_scheduler import AsyncScheduler

            usual = AsyncScheduler
        rules: dict[str, Any] = {}
        if config.enable_lora:
            from mini_vllm.lora.admission import LoRAAdmission

            rules["admission_rules"] = [LoRAAdmission(config.max_loras)]
        scheduler = (self.scheduler or usual)(config, kv_cache_manager, **rules)
        if config.rules != PIN:
            from mini_vllm.core.sched.releases import put_on, rules_of

            put_on(scheduler, rules_of(config.rules))
        if self.kv_event_publisher is not None:
            scheduler.kv_event_publisher = self.kv_event_publisher
        return scheduler

    def make_block_pool(self, config: ResolvedConfig) -> BlockPool:
        """The block pool for these settings.

        Raises ValueError if events are wanted of another's pool, which makes none.
        """
        if self.kv_event_publisher is None:
            return self.block_pool(config.num_gpu_blocks, config.enable_prefix_caching)
        if self.block_pool is not BlockPool:
            raise ValueError(
                f"parts.kv_event_publisher needs the engine's own block pool, and parts.block_pool is "
                f"{self.block_pool!r}"
            )
        from mini_vllm.core.event_block_pool import EventBlockPool

        return EventBlockPool(
            config.num_gpu_blocks, config.enable_prefix_caching, config.block_size
        )


DEFAULT_PARTS = EngineParts()
