"""vLLM's own schedulers as an engine of the fuzz. It imports vLLM where one is made, and not before."""

from __future__ import annotations

import copy
import functools
from typing import Any

from course.fuzz.engine import Engine
from course.fuzz.world import EOS, Job, World


@functools.cache
def _template(method: str | None = None) -> Any:
    """A `VllmConfig` to copy: to make one takes longer than to run a world."""
    from course.parity.record import vllm_parts

    config: Any = {
        "block_size": 2, "num_blocks": 8, "max_num_seqs": 1, "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 0, "enable_prefix_caching": True, "max_model_len": 48,
        "policy": "fcfs",
    }  # fmt: skip
    if method is not None:
        config["speculative_config"] = {"method": method, "num_speculative_tokens": 1}
    return vllm_parts(config).scheduler


class Vllm(Engine):
    """vLLM's own classes, whichever release `import vllm` finds."""

    def __init__(self, world: World) -> None:
        import torch
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        s, spec = world.settings, world.speculation
        template = _template(spec.method if spec is not None else None)
        size = s.block_size
        config = copy.copy(template.vllm_config)
        config.model_config = _changed(config.model_config, max_model_len=s.max_model_len)
        config.cache_config = _changed(
            config.cache_config,
            block_size=size,
            enable_prefix_caching=s.enable_prefix_caching,
            num_gpu_blocks=s.num_blocks,
        )
        config.scheduler_config = _changed(
            config.scheduler_config,
            max_model_len=s.max_model_len,
            max_num_seqs=s.max_num_seqs,
            max_num_batched_tokens=s.max_num_batched_tokens,
            max_num_scheduled_tokens=world.budget if spec is not None else None,
            long_prefill_token_threshold=s.long_prefill_token_threshold,
            enable_chunked_prefill=s.enable_chunked_prefill,
            scheduler_reserve_full_isl=s.scheduler_reserve_full_isl,
            policy=s.policy,
            async_scheduling=world.mode != "sync",
        )
        if spec is not None:
            config.speculative_config = _changed(
                config.speculative_config, num_speculative_tokens=spec.k
            )
        attention = FullAttentionSpec(
            block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        scheduler = (Scheduler if world.mode == "sync" else AsyncScheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=s.num_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
            ),
            structured_output_manager=template.structured_output_manager,
            block_size=size,
            log_stats=False,
        )
        self._hasher = _hasher(size) if s.enable_prefix_caching else None
        super().__init__(world, scheduler)

    def _request(self, request_id: str, job: Job, arrival_time: float) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(
            max_tokens=job.max_tokens, ignore_eos=job.ignore_eos, stop_token_ids=list(job.stop)
        )
        params.update_from_generation_config({}, EOS)
        return Request(
            request_id=request_id,
            prompt_token_ids=list(job.prompt),
            sampling_params=params,
            pooling_params=None,
            arrival_time=arrival_time,
            priority=job.priority,
            cache_salt=str(job.salt) if job.salt else None,
            block_hasher=self._hasher,
        )

    def _output(self, request_ids: list[str], sampled: list[list[int]]) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        index = {request_id: i for i, request_id in enumerate(request_ids)}
        return ModelRunnerOutput(
            req_ids=request_ids, req_id_to_index=index, sampled_token_ids=sampled
        )

    def _drafts(self, request_ids: list[str], drafts: list[list[int]]) -> Any:
        from vllm.v1.outputs import DraftTokenIds

        return DraftTokenIds(request_ids, drafts)

    def _aborted(self) -> Any:
        from vllm.v1.request import RequestStatus

        return RequestStatus.FINISHED_ABORTED

    def reset_prefix_cache(self, running: bool) -> None:
        self.scheduler.reset_prefix_cache(reset_running_requests=running)


@functools.cache
def _hasher(block_size: int) -> Any:
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher

    return get_request_block_hasher(block_size, sha256)


def _changed(config: Any, **values: Any) -> Any:
    changed = copy.copy(config)
    for name, value in values.items():
        setattr(changed, name, value)
    return changed
