"""vLLM's signatures over `mini_vllm`'s two schedulers; see `core`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason

import mini_vllm.core.sched.async_scheduler as m_async
import mini_vllm.core.sched.output as m_output
import mini_vllm.core.sched.request_queue as m_queue
import mini_vllm.core.sched.scheduler as m_scheduler
from course.conformance.core import BlockPool, hash_size, make_manager
from course.conformance.groups import kv_cache_config as our_groups
from course.conformance.missing import Missing, refuse
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.config.speculative import METHODS, SpeculativeConfig
from mini_vllm.core.kv_cache_interface import KVCacheConfig
from mini_vllm.core.sched.admission import AdmissionGate
from mini_vllm.structured_output.scheduling import GrammarScheduling

FINISH_REASONS = {
    None: None,
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "error": FinishReason.ERROR,
}


# The engine has none, which is as good as an empty one to a test that looks whether all was freed.
EMPTY_ENCODER_CACHE = SimpleNamespace(cached={}, freed=[], freeable={})


class FCFSRequestQueue(m_queue.FCFSRequestQueue):
    def __getitem__(self, index: int) -> Any:  # vLLM's is a deque
        return list(self)[index]


class PriorityRequestQueue(m_queue.PriorityRequestQueue):
    def __getitem__(self, index: int) -> Any:
        return list(self)[index]


# Attributes of vLLM's scheduler that belong to a feature, for tests that look at them.
_PARTS = {
    "max_num_encoder_input_tokens": "multi-modal inputs",
    "finished_recving_kv_req_ids": "KV connector",
    "set_pause_state": "pausing",
    "pause_state": "pausing",
}


# What a test that makes a scheduler by hand, one of vLLM's attributes after the other, cannot know of: as the
# engine's constructor has it, without drafts.
_LEFT_TO_THE_ENGINE: dict[str, Callable[[], Any]] = {
    "admission": AdmissionGate,
    "grammars": lambda: None,
    "num_spec_tokens": lambda: 0,
    "async_tokens_to_discard": dict,
}


def engine_config(vllm_config: Any, pool: KVCacheConfig) -> ResolvedConfig:
    """The engine's settings for vLLM's; `Missing` for a feature that is on."""
    theirs, parallel = vllm_config.scheduler_config, vllm_config.parallel_config
    model = vllm_config.model_config
    refuse(
        KV_connector=vllm_config.kv_transfer_config,
        encoder_cache_connector=vllm_config.ec_transfer_config,
        LoRA=vllm_config.lora_config,
        pipeline_parallelism=parallel.pipeline_parallel_size > 1,
        multi__modal_inputs=model.is_multimodal_model,
        encoder__decoder=model.is_encoder_decoder,
    )
    spec = speculation(vllm_config.speculative_config)
    budget = theirs.max_num_scheduled_tokens or theirs.max_num_batched_tokens
    if spec is not None:  # the engine takes a draft model's rows off by itself
        budget += spec.max_num_new_slots_for_drafting * theirs.max_num_seqs
    max_model_len = model.max_model_len
    if not theirs.enable_chunked_prefill:
        # vLLM holds the budget against another field, SchedulerConfig.max_model_len, which tests set low.
        max_model_len = min(max_model_len, budget)
    return ResolvedConfig(
        block_size=hash_size(pool),
        num_gpu_blocks=pool.num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=theirs.max_num_seqs,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=theirs.long_prefill_token_threshold,
        enable_chunked_prefill=theirs.enable_chunked_prefill,
        enable_prefix_caching=bool(vllm_config.cache_config.enable_prefix_caching),
        scheduling_policy=theirs.policy,
        scheduler_reserve_full_isl=theirs.scheduler_reserve_full_isl,
        speculative_config=spec,
    )


def speculation(theirs: Any) -> SpeculativeConfig | None:
    """The engine's settings of a drafter for vLLM's; `Missing` for one that it has not."""
    if theirs is None:
        return None
    refuse(other_drafters=theirs.method not in METHODS)
    model = None if theirs.method == "ngram" else "a drafter"
    return SpeculativeConfig(theirs.num_speculative_tokens, theirs.method, model)


# Grammars want a scheduler that takes results in by the engine's code, and the one below does.
_by_the_engine: Any = functools.wraps(m_scheduler.Scheduler.update_from_output)


class _Face(m_scheduler.Scheduler):
    """vLLM's constructor and messages before one of the engine's schedulers."""

    ec_connector = None
    encoder_cache_manager = EMPTY_ENCODER_CACHE

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        structured_output_manager: Any = None,
        block_size: int | None = None,
        hash_block_size: int | None = None,
        include_finished_set: bool = False,
        log_stats: bool = False,
        **rest: Any,
    ) -> None:
        groups = our_groups(kv_cache_config)
        config = engine_config(vllm_config, groups)
        caching = config.enable_prefix_caching
        pool = BlockPool(config.num_gpu_blocks, caching)
        eagle = config.speculation is not None and config.speculation.use_eagle()
        manager = make_manager(
            groups, config.max_model_len, config.token_budget, caching, pool, eagle
        )
        super().__init__(config, manager)
        self.structured_output_manager = structured_output_manager
        fcfs = config.scheduling_policy == "fcfs"
        self.waiting = FCFSRequestQueue() if fcfs else PriorityRequestQueue()
        self.vllm_config, self.log_stats = vllm_config, log_stats
        self.scheduler_config = vllm_config.scheduler_config
        self.cache_config = vllm_config.cache_config

    def __getattr__(self, name: str) -> Any:
        if name in _PARTS:
            raise Missing(_PARTS[name])
        if name in _LEFT_TO_THE_ENGINE:
            return _LEFT_TO_THE_ENGINE[name]()
        raise AttributeError(name)

    @property
    def connector(self) -> None:
        return None

    @connector.setter
    def connector(self, connector: Any) -> None:
        refuse(KV_connector=connector is not None)

    def _take_grammars(self, request: Any) -> None:
        """The engine's grammars with the first request that has a rule, as its core makes them."""
        if self.grammars is None and request.structured_output_request is not None:
            GrammarScheduling(self, self.structured_output_manager)

    def add_request(self, request: Any) -> None:
        self._take_grammars(request)
        super().add_request(request)

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        ids: Iterable[str] = list(self.requests) if request_ids is None else request_ids
        return [(request_id, 0) for request_id in super().finish_requests(ids, finished_status)]

    def schedule(self) -> Any:
        ours = super().schedule()
        cached = ours.scheduled_cached_reqs
        counts = cached.num_output_tokens or [
            self.requests[req_id].num_output_tokens for req_id in cached.req_ids
        ]
        theirs = SchedulerOutput(
            scheduled_new_reqs=[
                NewRequestData(
                    req_id=new.req_id,
                    prompt_token_ids=new.prompt_token_ids,
                    mm_features=[],
                    sampling_params=new.sampling_params,
                    pooling_params=None,
                    block_ids=new.block_ids,
                    num_computed_tokens=new.num_computed_tokens,
                    lora_request=None,
                )
                for new in ours.scheduled_new_reqs
            ],
            scheduled_cached_reqs=CachedRequestData(
                req_ids=cached.req_ids,
                resumed_req_ids=cached.resumed_req_ids,
                new_token_ids=[],
                all_token_ids={},
                new_block_ids=cached.new_block_ids,
                num_computed_tokens=cached.num_computed_tokens,
                num_output_tokens=counts,
            ),
            num_scheduled_tokens=ours.num_scheduled_tokens,
            total_num_scheduled_tokens=ours.total_num_scheduled_tokens,
            scheduled_spec_decode_tokens=ours.scheduled_spec_decode_tokens,
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=[0],
            finished_req_ids=ours.finished_req_ids,
            free_encoder_mm_hashes=[],
            preempted_req_ids=ours.preempted_req_ids,
        )
        theirs.ours = ours
        return theirs

    @_by_the_engine
    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        sampled = model_runner_output.sampled_token_ids
        refuse(KV_connector=model_runner_output.kv_connector_output is not None)
        ours = getattr(scheduler_output, "ours", None)
        if ours is None:  # written by hand in the test
            for request in self.requests.values():
                self._take_grammars(request)
            ours = m_output.SchedulerOutput(
                [],
                m_output.CachedRequestData([], set(), [], []),
                scheduler_output.num_scheduled_tokens,
                scheduler_output.total_num_scheduled_tokens,
                set(),
                scheduler_output.finished_req_ids,
                scheduled_spec_decode_tokens=scheduler_output.scheduled_spec_decode_tokens,
            )
        result = m_output.ModelRunnerOutput(
            model_runner_output.req_ids, model_runner_output.req_id_to_index, sampled
        )
        outputs = [
            EngineCoreOutput(
                one.request_id,
                one.new_token_ids,
                finish_reason=FINISH_REASONS[one.finish_reason],
                stop_reason=one.stop_reason,
            )
            for one in super().update_from_output(ours, result)
        ]
        stats = self.make_stats()
        return {0: EngineCoreOutputs(outputs=outputs, scheduler_stats=stats)}


class Scheduler(_Face):
    """`mini_vllm`'s synchronous scheduler."""


class AsyncScheduler(_Face, m_async.AsyncScheduler):
    """`mini_vllm`'s scheduler that plans ahead."""
