"""One interface over the schedulers that can be driven: vLLM's two (`engine_vllm`), and `mini_vllm`'s.

Covers vLLM 0.20.0 to 0.33.0. What moved in between is in here and nowhere else: the V2 runner's plans
bring a resumed request as a new one, and from 0.27 on a pool may take blocks back a step later.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from course.fuzz.engine import Engine
from course.fuzz.memory import Plan
from course.fuzz.world import EOS, Job, Settings, World

ENGINES = ("vllm", "mini_vllm")


class Mini(Engine):
    """`mini_vllm`'s scheduler; `scheduler_class` and `manager_class` for one with another behaviour."""

    def __init__(
        self, world: World, scheduler_class: Any = None, manager_class: Any = None
    ) -> None:
        from mini_vllm.config.engine import EngineConfig
        from mini_vllm.config.speculative import SpeculativeConfig
        from mini_vllm.core.kv_cache_manager import KVCacheManager

        if scheduler_class is None:
            scheduler_class = _mini_scheduler(world.mode)
        s: Settings = world.settings
        spec, speculative_config = world.speculation, None
        if spec is not None:
            model = None if spec.method == "ngram" else "a drafter"
            speculative_config = SpeculativeConfig(
                method=spec.method, num_speculative_tokens=spec.k, model=model
            )
        config = EngineConfig(
            block_size=s.block_size,
            num_gpu_blocks=s.num_blocks,
            max_model_len=s.max_model_len,
            max_num_seqs=s.max_num_seqs,
            max_num_batched_tokens=s.max_num_batched_tokens,
            long_prefill_token_threshold=s.long_prefill_token_threshold,
            enable_prefix_caching=s.enable_prefix_caching,
            enable_chunked_prefill=s.enable_chunked_prefill,
            scheduler_reserve_full_isl=s.scheduler_reserve_full_isl,
            scheduling_policy=s.policy,  # type: ignore[arg-type]
            speculative_config=speculative_config,
        )
        manager_class = manager_class or KVCacheManager
        if spec is not None and spec.method == "eagle":
            manager_class = functools.partial(manager_class, use_eagle=True)
        manager = manager_class(
            s.num_blocks, s.block_size, s.max_model_len, s.enable_prefix_caching
        )
        super().__init__(world, scheduler_class(config, manager))

    def _request(self, request_id: str, job: Job, arrival_time: float) -> Any:
        from mini_vllm.core.request import Request
        from mini_vllm.sampling_params import SamplingParams

        params = SamplingParams(
            max_tokens=job.max_tokens, ignore_eos=job.ignore_eos, stop_token_ids=list(job.stop)
        )
        params.update_from_generation_config({}, EOS)
        return Request(
            request_id,
            list(job.prompt),
            params,
            arrival_time=arrival_time,
            priority=job.priority,
            cache_salt=str(job.salt) if job.salt else None,
            block_size=self.settings.block_size if self.settings.enable_prefix_caching else None,
        )

    def _output(self, request_ids: list[str], sampled: list[list[int]]) -> Any:
        from mini_vllm.core.sched.output import ModelRunnerOutput

        index = {request_id: i for i, request_id in enumerate(request_ids)}
        return ModelRunnerOutput(request_ids, index, sampled)

    def _news(self, given: Any) -> list[Any]:
        return list(given)

    def _drafts(self, request_ids: list[str], drafts: list[list[int]]) -> Any:
        from mini_vllm.core.sched.output import DraftTokenIds

        return DraftTokenIds(request_ids, drafts)

    def _aborted(self) -> Any:
        from mini_vllm.core.request import RequestStatus

        return RequestStatus.FINISHED_ABORTED

    def schedule(self) -> tuple[Any, Plan]:
        """As `Engine.schedule`. vLLM tells a resumed request's tokens; here the worker knows them, but
        those that the scheduler dropped in a reset."""
        output, plan = super().schedule()
        cached = output.scheduled_cached_reqs
        known = getattr(cached, "num_output_tokens", None) or [None] * len(cached.req_ids)
        for request_id, num_output_tokens in zip(cached.req_ids, known, strict=True):
            request = self.requests[request_id]
            if num_output_tokens == request.num_output_tokens:  # none of them is on its way
                entry = next(e for e in plan.entries if e.request_id == request_id)
                entry.tokens = list(request.all_token_ids)
        return output, plan

    def reset_prefix_cache(self, running: bool) -> None:
        reset = getattr(self.scheduler, "reset_prefix_cache", None)
        if reset is not None:
            reset(running)
        elif not running:  # preempting everybody for it is beyond this scheduler
            self.scheduler.kv_cache_manager.reset_prefix_cache()

    def _tables(self) -> dict[str, Any]:
        self.scheduler.kv_cache_manager.check_invariants()
        return {}


ASYNC = "mini_vllm.core.sched.async_scheduler"


def can_play(name: str, mode: str) -> bool:
    """Has this engine a scheduler for the mode?"""
    return name == "vllm" or mode == "sync" or importlib.util.find_spec(ASYNC) is not None


def _mini_scheduler(mode: str) -> Any:
    if mode == "sync":
        from mini_vllm.core.sched.scheduler import Scheduler

        return Scheduler
    if not can_play("mini_vllm", mode):
        raise ValueError(f"mode {mode!r}: mini_vllm has no {ASYNC.rpartition('.')[2]} here")
    return importlib.import_module(ASYNC).AsyncScheduler


def engine_of(name: str, world: World) -> Engine:
    """A fresh engine for a world. Raises ValueError for an unknown name, ImportError without vLLM."""
    if name not in ENGINES:
        raise ValueError(f"unknown engine {name!r}; one of {', '.join(ENGINES)}")
    if name == "mini_vllm":
        return Mini(world)
    from course.fuzz.engine_vllm import Vllm

    return Vllm(world)


def release(name: str) -> str:
    """The release of the engine that runs."""
    if name == "vllm":
        import vllm

        return str(vllm.__version__)
    return "of this course"
