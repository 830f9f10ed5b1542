"""vLLM's signatures over the front of `mini_vllm`: sampler, statistics, output processor, graph dispatcher.

As in `core`, nothing here decides anything: tensors become arrays, names are exchanged, and what the engine
has not is refused by name.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import vllm.config as v_config
import vllm.forward_context as v_forward

import mini_vllm
import mini_vllm.cudagraph.dispatcher as m_dispatcher
import mini_vllm.cudagraph.modes as m_modes
import mini_vllm.engine.logprobs as m_logprobs
import mini_vllm.engine.output_processor as m_processor
import mini_vllm.engine.parallel_sampling as m_parallel
import mini_vllm.metrics.stats as m_stats
import mini_vllm.outputs as m_outputs
import mini_vllm.sample.metadata as m_metadata
import mini_vllm.sample.ops as m_ops
import mini_vllm.sample.sampler as m_sampler
import mini_vllm.sampling_params as m_params
from course.conformance.missing import Missing, refuse
from mini_vllm.core.sched.output import EngineCoreOutput
from mini_vllm.sample.logits_processor import LogitsProcessors
from mini_vllm.tokenizer import Tokenizer


def EngineArgs(**given: Any) -> mini_vllm.EngineArgs:
    """The engine's, without two settings that say nothing to it: it has float32 and compiles nothing."""
    given.pop("dtype", None)
    if given.get("compilation_config") == {"mode": 0}:
        del given["compilation_config"]
    return mini_vllm.EngineArgs(**given)


class LLM(mini_vllm.LLM):
    """The engine's, without settings that say nothing to it, and with vLLM's own where tests look at them."""

    def __init__(self, model: str, **given: Any) -> None:
        for name in ("dtype", "compilation_config"):
            given.pop(name, None)
        super().__init__(model, **given)
        engine: Any = self.llm_engine
        engine.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(
                gpu_memory_utilization=given.get("gpu_memory_utilization"),
                enable_prefix_caching=given.get("enable_prefix_caching", True),
            )
        )
        vocab_size = engine.input_processor.vocab_size
        engine.model_config = SimpleNamespace(get_vocab_size=lambda: vocab_size)


class SamplingParams(m_params.SamplingParams):
    """The engine's. Its enum is found by name: a test's decorators have taken vLLM's before the exchange."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kind = kwargs.get("output_kind")
        if kind is not None:
            kwargs["output_kind"] = m_params.RequestOutputKind[kind.name]
        super().__init__(*args, **kwargs)


# -- sampler ----------------------------------------------------------------------------------------


def _row(theirs: Any, i: int, output_token_ids: list[list[int]], vocab_size: int) -> Any:
    """Row `i` of vLLM's metadata, as the engine's would be built from."""
    params = SimpleNamespace(
        presence_penalty=float(theirs.presence_penalties[i]),
        frequency_penalty=float(theirs.frequency_penalties[i]),
        repetition_penalty=float(theirs.repetition_penalties[i]),
        bad_words_token_ids=theirs.bad_words_token_ids.get(i),
    )
    prompt = theirs.prompt_token_ids
    prompt_ids = [] if prompt is None else [t for t in prompt[i].tolist() if t < vocab_size]
    return SimpleNamespace(
        sampling_params=params, prompt_token_ids=prompt_ids, output_token_ids=output_token_ids[i]
    )


class Sampler:
    """vLLM's two methods that change logits, over the engine's sampler."""

    def __init__(self, logprobs_mode: str = "raw_logprobs") -> None:
        self.ours = m_sampler.Sampler(logprobs_mode=logprobs_mode)

    def _apply(self, logits: Any, theirs: Any, output_token_ids: Any, penalties_only: bool) -> Any:
        n, vocab_size = logits.shape
        rows = [_row(theirs, i, output_token_ids, vocab_size) for i in range(n)]
        mask = None if penalties_only else theirs.allowed_token_ids_mask
        bad_words = bool(theirs.bad_words_token_ids) and not penalties_only
        everyone = list(range(n))
        metadata = m_metadata.SamplingMetadata(
            shape=(n, vocab_size),
            all_greedy=theirs.all_greedy,
            all_random=theirs.all_random,
            temperature=None,
            top_p=None,
            top_k=None,
            min_p=None,
            generators={},
            logprob_token_ids={},
            max_num_logprobs=None,
            allowed_token_ids_mask=None if mask is None else mask.cpu().numpy(),
            bad_words=m_metadata.BadWordsState(rows) if bad_words else None,
            min_tokens=None,
            logit_bias=None,
            penalties=None
            if theirs.no_penalties
            else m_metadata.PenaltyState(rows, everyone, vocab_size),
            logitsprocs=LogitsProcessors(),
        )
        changed = self.ours.apply_logits_processors(logits.cpu().numpy(), metadata)
        return torch.from_numpy(np.ascontiguousarray(changed))

    def apply_logits_processors(
        self, logits: Any, sampling_metadata: Any, predict_bonus_token: bool = False
    ) -> Any:
        refuse(speculative_decoding=predict_bonus_token)
        ids = sampling_metadata.output_token_ids
        return self._apply(logits, sampling_metadata, ids, penalties_only=False)

    def apply_penalties(self, logits: Any, sampling_metadata: Any, output_token_ids: Any) -> Any:
        return self._apply(logits, sampling_metadata, output_token_ids, penalties_only=True)


# -- statistics -------------------------------------------------------------------------------------


class PromptTokenStats(m_stats.PromptTokenStats):
    external_kv_transfer = 0

    @property
    def cached_tokens(self) -> int:
        return self.local_cache_hit

    def update_from_output(self, prefill_stats: Any) -> None:
        refuse(KV_connector=prefill_stats.num_external_cached_tokens)
        self.add(prefill_stats.num_prompt_tokens, prefill_stats.num_local_cached_tokens)


class IterationStats(m_stats.IterationStats):
    def update_from_finished_request(  # type: ignore[override]
        self,
        finish_reason: Any,
        request_id: str,
        num_prompt_tokens: int,
        max_tokens_param: int | None,
        req_stats: Any,
        num_cached_tokens: int = 0,
    ) -> None:
        super().update_from_finished_request(
            str(finish_reason), request_id, num_prompt_tokens, req_stats, num_cached_tokens
        )


# -- output processor -------------------------------------------------------------------------------


class ParentRequest(m_parallel.ParentRequest):
    def __init__(self, request: Any) -> None:
        super().__init__(request.request_id, request.sampling_params)


def _logprobs(theirs: Any) -> m_ops.LogprobsLists | None:
    if theirs is None:
        return None
    ids, logprobs, ranks = (np.asarray(part) for part in tuple(theirs)[:3])
    return m_ops.LogprobsLists(
        ids.astype(np.int32), logprobs.astype(np.float32), ranks.reshape(len(ids))
    )


class LogprobsProcessor:
    """vLLM's arguments before the engine's, and the names of its steps."""

    def __init__(
        self,
        tokenizer: Any,
        logprobs: Any,
        prompt_logprobs: Any,
        cumulative_logprob: float | None,
        num_logprobs: int | None,
        num_prompt_logprobs: int | None,
    ) -> None:
        refuse(flat_logprobs=logprobs is not None and not isinstance(logprobs, list))
        self.tokenizer = tokenizer
        params = m_params.SamplingParams(logprobs=num_logprobs, prompt_logprobs=num_prompt_logprobs)
        self.ours = m_logprobs.LogprobsProcessor(tokenizer and self, params)  # type: ignore[arg-type]

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        """The engine's call of a tokenizer as vLLM's: a test's tokenizer takes the ids alone."""
        assert not skip_special_tokens
        text: str = self.tokenizer.decode(token_ids)
        return text

    @property
    def logprobs(self) -> Any:
        return self.ours.logprobs

    @property
    def cumulative_logprob(self) -> float | None:
        return self.ours.cumulative_logprob

    def _update_sample_logprobs(self, logprobs_lists: Any) -> None:
        output = EngineCoreOutput("", [], new_logprobs=_logprobs(logprobs_lists))
        self.ours.update_from_output(output)

    def _correct_decoded_token(self, token_id: int, context_token_ids: list[int]) -> str:
        return self.ours._correct_decoded_token(token_id, context_token_ids)


class OutputProcessor:
    def __init__(
        self,
        tokenizer: Any,
        *,
        log_stats: bool,
        stream_interval: int = 1,
        tracing_enabled: bool = False,
    ) -> None:
        refuse(tracing=tracing_enabled)
        folder = getattr(tokenizer, "name_or_path", None)
        self.ours = m_processor.OutputProcessor(
            Tokenizer.from_folder(folder) if folder else None, stream_interval
        )
        self.log_stats = log_stats
        self.external_ids: dict[str, str] = {}

    def add_request(
        self,
        request: Any,
        prompt: str | None,
        parent_req: Any = None,
        request_index: int = 0,
        queue: Any = None,
    ) -> None:
        refuse(
            LoRA=request.lora_request,
            pooling=request.pooling_params,
            queues_in_the_output_processor=queue,
        )
        state = m_processor.RequestState(
            request.request_id,
            prompt,
            request.prompt_token_ids,
            request.sampling_params,
            self.ours.tokenizer,
            parent_req,
            request_index,
        )
        if self.log_stats:
            state.stats = m_outputs.RequestStateStats(arrival_time=request.arrival_time)
        self.external_ids[request.request_id] = request.external_req_id
        self.ours.add_request(state)

    def process_outputs(
        self, engine_core_outputs: Any, timestamp: float | None = None, iteration_stats: Any = None
    ) -> Any:
        ours = []
        for one in engine_core_outputs:
            state = self.ours.request_states.get(one.request_id)
            if state is not None and iteration_stats is not None:
                assert state.stats is not None
                assert timestamp is not None
                num_prompt_tokens = len(state.prompt_token_ids)
                iteration_stats.update_from_output(
                    len(one.new_token_ids), timestamp, state.stats, num_prompt_tokens, 0
                )
            ours.append(
                EngineCoreOutput(
                    one.request_id,
                    list(one.new_token_ids),
                    None if one.finish_reason is None else str(one.finish_reason),
                    one.stop_reason,
                    _logprobs(one.new_logprobs),
                    _logprobs(one.new_prompt_logprobs_tensors),
                )
            )
        result = self.ours.process_outputs(ours)
        for output in result.request_outputs:
            output.request_id = self.external_ids[output.request_id]
        return result

    def abort_requests(self, request_ids: list[str], internal: bool) -> list[str]:
        internal_ids = {given: ours for ours, given in self.external_ids.items()}
        ids = request_ids if internal else [internal_ids[given] for given in request_ids]
        return [child for one in ids for child in self.ours.abort_request(one)]

    def get_num_unfinished_requests(self) -> int:
        return len(self.ours.request_states)

    def has_unfinished_requests(self) -> bool:
        return bool(self.ours.request_states)


# -- graph dispatcher -------------------------------------------------------------------------------


def _mode(theirs: Any) -> m_modes.CUDAGraphMode:
    return m_modes.CUDAGraphMode[theirs.name]


def _their_mode(ours: m_modes.CUDAGraphMode) -> Any:
    return v_config.CUDAGraphMode[ours.name]


def _their_key(ours: m_modes.BatchDescriptor) -> Any:
    return v_forward.BatchDescriptor(ours.num_tokens, ours.num_reqs, ours.uniform)


class CudagraphDispatcher:
    def __init__(self, vllm_config: Any) -> None:
        refuse(LoRA=vllm_config.lora_config)
        self.compilation_config = vllm_config.compilation_config
        self.max_num_seqs = vllm_config.scheduler_config.max_num_seqs
        if self.compilation_config.cudagraph_mode.requires_piecewise_compilation():
            # About how the model is compiled, which the engine leaves to whoever makes its dispatcher.
            assert self.compilation_config.is_attention_compiled_piecewise()
        self.ours: m_dispatcher.CudagraphDispatcher | None = None

    def initialize_cudagraph_keys(
        self, cudagraph_mode: Any, uniform_decode_query_len: int = 1
    ) -> None:
        self.ours = m_dispatcher.CudagraphDispatcher(
            _mode(cudagraph_mode),
            self.compilation_config.cudagraph_capture_sizes,
            self.max_num_seqs,
            uniform_decode_query_len,
        )

    @property
    def cudagraph_keys(self) -> Any:
        assert self.ours is not None
        keys = self.ours.cudagraph_keys
        return {_their_mode(mode): {_their_key(key) for key in keys[mode]} for mode in keys}

    def dispatch(
        self,
        num_tokens: int,
        uniform_decode: bool = False,
        has_lora: bool = False,
        num_active_loras: int = 0,
        valid_modes: Any = None,
        invalid_modes: Any = None,
    ) -> Any:
        refuse(LoRA=has_lora or num_active_loras)
        assert self.ours is not None
        barred = {_mode(mode) for mode in invalid_modes or ()}
        if valid_modes is not None:  # in the engine: the others are named as invalid
            wanted = {_mode(mode) for mode in valid_modes}
            barred |= m_modes.CUDAGraphMode.valid_runtime_modes() - wanted
        mode, key = self.ours.dispatch(num_tokens, uniform_decode, frozenset(barred))
        return _their_mode(mode), _their_key(key)

    def get_capture_descs(self) -> Any:
        descs = self.ours.get_capture_descs() if self.ours else []
        return [(_their_mode(mode), [_their_key(key) for key in keys]) for mode, keys in descs]


def raise_missing(feature: str) -> Any:
    """What stands in the place of a function or class of vLLM's that belongs to `feature`."""

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise Missing(feature)

    return missing
