"""From a step's decisions to arrays, through the model, to sampled tokens.

Mirrors `vllm/v1/worker/gpu_model_runner.py` (`_update_states`, `_prepare_inputs` 1863, `execute_model`
3955, `sample_tokens` 4320), `gpu_input_batch.py` and `block_table.py`.

The runner keeps its own copy of every request's tokens and block table and is told only what
changed, as upstream's worker is, which lives in another process. All requests of a step are laid end
to end in flat arrays; nothing is padded.

With asynchronous scheduling a step is planned with places for tokens that nobody knows yet. What was
sampled is written into the request's row at once, so the next step, which begins after this one, finds
its input there; upstream keeps it on the device, as `prev_sampled_token_ids`, for the same purpose
(`vllm/v1/worker/gpu_model_runner.py:3591 in GPUModelRunner._bookkeeping_sync`).

Left out: multi-modal inputs, LoRA, CUDA graphs, parallelism. Drafts are `spec_decode_runner.py`'s.
Upstream also samples rows that are still in the middle of their prompt and throws the token away; here
only rows that have caught up are sampled.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.sched.output import (
    DraftTokenIds,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from mini_vllm.layers.quantization.kv_cache import QuantizedAttention, QuantizedKVCache
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.sample.logits_processor.load import build_logitsprocs
from mini_vllm.sample.metadata import SamplingMetadata, make_generator
from mini_vllm.sample.ops import LogprobsLists, compute_logprobs, gather_logprobs
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils.math import cdiv
from mini_vllm.utils.threads import shared_products


class CachedRequestState:
    """What the worker remembers of a request
    (`vllm/v1/worker/gpu_input_batch.py:34 CachedRequestState`).

    `row` is its place in the runner's arrays; -1 while it is preempted.
    """

    __slots__ = (
        "generator",
        "output_token_ids",
        "prompt_logprobs",
        "prompt_token_ids",
        "req_id",
        "row",
        "sampling_params",
    )

    def __init__(self, req_id: str, prompt_token_ids: list[int], params: SamplingParams) -> None:
        self.req_id = req_id
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = params
        self.output_token_ids: list[int] = []
        self.generator = make_generator(params)
        self.row = -1
        self.prompt_logprobs: list[LogprobsLists] = []  # of the chunks up to now


def with_kv_cache_dtype(model: LlamaForCausalLM, kv_cache_dtype: str) -> LlamaForCausalLM:
    """The model, attending over a cache of such numbers. Who gave it may run it over a plain cache, too."""
    if kv_cache_dtype != "auto":
        model = copy.copy(model)
        model.attention = QuantizedAttention(model.attention)
    return model


def kv_cache_shape(model: LlamaForCausalLM, num_blocks: int, block_size: int) -> tuple[int, ...]:
    """Shape of one layer's cache, as the model's attention wants it."""
    config = model.config
    return model.attention.get_kv_cache_shape(
        num_blocks, block_size, config.num_key_value_heads, config.head_dim
    )


def allocate_kv_caches(
    model: LlamaForCausalLM, shape: tuple[int, ...], kv_cache_dtype: str
) -> list[Any]:
    """One cache a layer, of zeros. Raises MemoryError or ValueError where there is no room."""
    if kv_cache_dtype != "auto":
        scales = [(layer.self_attn.k_scale, layer.self_attn.v_scale) for layer in model.layers]
        return [QuantizedKVCache(shape, kv_cache_dtype, *pair) for pair in scales]
    return [np.zeros(shape, np.float32) for _ in model.layers]


class ModelRunner:
    """Executes steps. Owns the KV cache arrays, one a layer.

    Args:
        model: the model; its attention backend decides the layout of the KV cache.
        config: `num_gpu_blocks` and `max_model_len` must be set.
        sampler: the sampler to use.

    Raises ValueError if the arrays are more than the machine's memory.
    """

    def __init__(self, model: LlamaForCausalLM, config: EngineConfig, sampler: Sampler) -> None:
        assert config.num_gpu_blocks is not None and config.max_model_len is not None
        self.kv_cache_dtype = config.kv_cache_dtype
        self.model = model = with_kv_cache_dtype(model, self.kv_cache_dtype)
        self.sampler = sampler
        self.logitsprocs = build_logitsprocs(config, config.logits_processors)
        self.block_size = config.block_size
        self.vocab_size = model.config.vocab_size
        shape = kv_cache_shape(model, config.num_gpu_blocks, config.block_size)
        rows = config.max_num_seqs
        max_blocks = cdiv(config.max_model_len, self.block_size)
        try:
            self.kv_caches = self._allocate_kv_caches(shape)
            # The persistent batch: one row a request, reused when it leaves.
            self.token_ids = np.zeros((rows, config.max_model_len), np.int32)
            self.block_table = np.zeros((rows, max_blocks), np.int32)
        except (MemoryError, ValueError) as error:  # numpy says ValueError past 2**63 bytes
            raise ValueError(
                f"num_gpu_blocks ({config.num_gpu_blocks}) and max_num_seqs ({rows}) need more "
                f"memory than there is: {error}"
            ) from error
        self.requests: dict[str, CachedRequestState] = {}
        self.row_of: dict[str, int] = {}
        self._free_rows = list(range(rows))[::-1]
        self.num_tokens = np.zeros(rows, np.int32)
        self.num_computed_tokens = np.zeros(rows, np.int32)
        self.num_blocks = [0] * rows
        self.num_prompt_logprobs: dict[str, int] = {}  # of requests that still wait for theirs
        self._metadata: tuple[list[CachedRequestState], SamplingMetadata] | None = None

    # -- state ------------------------------------------------------------------------------------

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        """Apply what the scheduler says has changed
        (`vllm/v1/worker/gpu_model_runner.py:1116 GPUModelRunner._update_states`)."""
        for req_id in scheduler_output.finished_req_ids:
            if req_id in self.requests:
                self._release_row(self.requests.pop(req_id))
                self.num_prompt_logprobs.pop(req_id, None)
        for req_id in scheduler_output.preempted_req_ids | scheduler_output.reset_req_ids:
            self._release_row(self.requests[req_id])

        cached = scheduler_output.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        if cached.num_output_tokens:
            for req_id, num_output_tokens in zip(
                cached.req_ids, cached.num_output_tokens, strict=True
            ):
                if req_id in resumed:  # a result that came after a reset of the cache was dropped
                    del self.requests[req_id].output_token_ids[num_output_tokens:]
        for i, block_ids in enumerate(cached.new_block_ids):
            if block_ids is None:
                continue
            req_id = cached.req_ids[i]
            if req_id in resumed:
                self._take_row(self.requests[req_id])
            self._append_blocks(self.row_of[req_id], block_ids)
        if cached.req_ids:
            row_of = self.row_of
            rows = [row_of[req_id] for req_id in cached.req_ids]
            self.num_computed_tokens[rows] = cached.num_computed_tokens
        for new in scheduler_output.scheduled_new_reqs:
            self._add_request(new)

    def _add_request(self, new: NewRequestData) -> None:
        state = CachedRequestState(new.req_id, new.prompt_token_ids, new.sampling_params)
        self.requests[new.req_id] = state
        wanted = new.sampling_params.prompt_logprobs
        if wanted is not None:
            self.num_prompt_logprobs[new.req_id] = self.vocab_size if wanted == -1 else wanted
        self._take_row(state)
        self._append_blocks(state.row, new.block_ids)
        self.num_computed_tokens[state.row] = new.num_computed_tokens

    def _take_row(self, state: CachedRequestState) -> None:
        """Give the request a row: its tokens, and a block table that is empty again."""
        row = state.row = self._free_rows.pop()
        self.row_of[state.req_id] = row
        tokens = state.prompt_token_ids + state.output_token_ids
        self.token_ids[row, : len(tokens)] = tokens
        self.num_tokens[row] = len(tokens)
        self.num_blocks[row] = 0

    def _release_row(self, state: CachedRequestState) -> None:
        if state.row >= 0:
            self._free_rows.append(state.row)
            del self.row_of[state.req_id]
            state.row = -1
            state.prompt_logprobs = []  # preempted in mid-prompt: it starts over

    def _append_blocks(self, row: int, block_ids: list[int]) -> None:
        start = self.num_blocks[row]
        self.num_blocks[row] = start + len(block_ids)
        self.block_table[row, start : start + len(block_ids)] = block_ids

    # -- one step ---------------------------------------------------------------------------------

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step and sample for every request that has caught up."""
        with shared_products():
            return self._execute_model(scheduler_output)

    def _execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        self._update_states(scheduler_output)
        req_ids = list(scheduler_output.num_scheduled_tokens)
        index = {req_id: i for i, req_id in enumerate(req_ids)}
        if not req_ids:
            return ModelRunnerOutput([], {}, [])
        rows = np.array([self.row_of[req_id] for req_id in req_ids])
        num_scheduled_tokens = np.array([*scheduler_output.num_scheduled_tokens.values()], np.int32)
        input_ids, positions, attn_metadata = self._prepare_inputs(rows, num_scheduled_tokens)
        hidden_states = self._model_forward(input_ids, positions, attn_metadata)

        result = ModelRunnerOutput(req_ids, index, [[] for _ in req_ids])
        result.prompt_logprobs_dict = self._get_prompt_logprobs_dict(
            index, attn_metadata, hidden_states
        )
        # Who is in the middle of its prompt has nothing to sample.
        caught_up = np.flatnonzero(attn_metadata.seq_lens == self.num_tokens[rows])
        sampled_ids = [req_ids[i] for i in caught_up]
        if not sampled_ids:
            return result
        logits_indices = attn_metadata.query_start_loc[1:][caught_up] - 1
        logits = self._compute_logits(hidden_states, logits_indices)
        sampled_token_ids = self._sample(logits, sampled_ids, result)

        # Remember the new tokens: they are the next step's input.
        sampled_rows = rows[caught_up]
        self.token_ids[sampled_rows, self.num_tokens[sampled_rows]] = sampled_token_ids
        self.num_tokens[sampled_rows] += 1
        for req_id, token in zip(sampled_ids, sampled_token_ids.tolist(), strict=True):
            self.requests[req_id].output_token_ids.append(token)
            result.sampled_token_ids[index[req_id]].append(token)
        return result

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """What was drafted for the next step: nothing (`SpecDecodeModelRunner` does)."""
        return None

    def _prepare_inputs(
        self, rows: np.ndarray, num_scheduled_tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, AttentionMetadata]:
        """Lay the step's tokens end to end.

        Args:
            rows: [num_reqs], the requests' rows.
            num_scheduled_tokens: int32 [num_reqs].

        Returns `input_ids` and `positions`, int [num_tokens], and the attention metadata. A token at
        position p of a request goes to slot `table[p // block_size] * block_size + p % block_size`.
        """
        num_computed_tokens = self.num_computed_tokens[rows]
        seq_lens = num_computed_tokens + num_scheduled_tokens
        query_start_loc = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(num_scheduled_tokens, out=query_start_loc[1:])
        # [2, 3] scheduled: requests 0 0 1 1 1, and 0 1 0 1 2 tokens past what was computed.
        req_indices = np.repeat(np.arange(len(rows)), num_scheduled_tokens)
        arange = np.arange(len(req_indices), dtype=np.int32) - query_start_loc[req_indices]
        positions = num_computed_tokens[req_indices] + arange
        token_rows = rows[req_indices]
        block_size = self.block_size
        block_numbers = self.block_table[token_rows, positions // block_size]
        slot_mapping = block_numbers.astype(np.int64) * block_size + positions % block_size
        attn_metadata = AttentionMetadata(
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            block_table=self.block_table[rows, : cdiv(int(seq_lens.max()), block_size)],
            slot_mapping=slot_mapping,
            block_size=block_size,
        )
        return self.token_ids[token_rows, positions], positions, attn_metadata

    # The three places where arrays meet the model; `gpu/model_runner.py` has its own.

    def _allocate_kv_caches(self, shape: tuple[int, ...]) -> list[Any]:
        """One cache a layer, of zeros. Raises MemoryError or ValueError where there is no room."""
        return allocate_kv_caches(self.model, shape, self.kv_cache_dtype)

    def _model_forward(
        self, input_ids: np.ndarray, positions: np.ndarray, attn_metadata: AttentionMetadata
    ) -> Any:
        """Hidden states of the step's tokens, in the model's own kind of array."""
        return self.model.forward(input_ids, positions, self.kv_caches, attn_metadata)

    def _compute_logits(self, hidden_states: Any, rows: np.ndarray) -> np.ndarray:
        """float32 `[len(rows), vocab_size]`, for these rows of `_model_forward`'s result."""
        return self.model.compute_logits(hidden_states[rows])

    def _sample(
        self, logits: np.ndarray, req_ids: Sequence[str], result: ModelRunnerOutput
    ) -> np.ndarray:
        """Sample one token a row; int64 [len(req_ids)]. Adds the logprobs asked for to `result`."""
        states = [self.requests[req_id] for req_id in req_ids]
        metadata = self._sampling_metadata(states)
        if self.logitsprocs:
            self.logitsprocs.update_state(states)
        out = self.sampler(logits, metadata)
        if out.logprobs is not None or out.specific_logprobs is not None:
            for i, state in enumerate(states):
                wanted = state.sampling_params.num_logprobs
                specific = state.sampling_params.logprob_token_ids
                lists = out.specific_logprobs if specific else out.logprobs
                if wanted is not None and lists is not None:
                    columns = (self.vocab_size if wanted == -1 else wanted) + 1
                    result.logprobs[state.req_id] = LogprobsLists(
                        lists.logprob_token_ids[i : i + 1, :columns],
                        lists.logprobs[i : i + 1, :columns],
                        lists.sampled_token_ranks[i : i + 1],
                    )
        return out.sampled_token_ids

    def _sampling_metadata(self, states: list[CachedRequestState]) -> SamplingMetadata:
        """What these requests ask of the sampler: made anew when others come together."""
        if self._metadata is None or self._metadata[0] != states:
            metadata = SamplingMetadata.build(states, self.vocab_size, self.logitsprocs)
            self._metadata = (states, metadata)
        return self._metadata[1]

    def _get_prompt_logprobs_dict(
        self, index: dict[str, int], attn_metadata: AttentionMetadata, hidden_states: Any
    ) -> dict[str, LogprobsLists]:
        """Score the prompt tokens of this step's chunks, for requests that asked.

        The hidden state at position p scores the prompt token at p + 1. What chunks yield is kept
        until the prompt is done and then sent at once
        (`vllm/v1/worker/gpu_model_runner.py`, `_get_prompt_logprobs_dict`).
        """
        done: dict[str, LogprobsLists] = {}
        for req_id, num_prompt_logprobs in list(self.num_prompt_logprobs.items()):
            if req_id not in index:
                continue
            state = self.requests[req_id]
            prompt = state.prompt_token_ids
            start, end = attn_metadata.query_start_loc[index[req_id] :][:2].tolist()
            seq_len = int(attn_metadata.seq_lens[index[req_id]])
            first = seq_len - (end - start)
            last = min(seq_len, len(prompt) - 1)  # the last prompt token predicts an output
            if first < last:
                logits = self._compute_logits(hidden_states, np.arange(start, start + last - first))
                targets = np.array(prompt[first + 1 : last + 1])
                state.prompt_logprobs.append(
                    gather_logprobs(compute_logprobs(logits), num_prompt_logprobs, targets)
                )
            if seq_len >= len(prompt):
                if state.prompt_logprobs:
                    parts = zip(*state.prompt_logprobs, strict=True)
                    done[req_id] = LogprobsLists(*(np.concatenate(part) for part in parts))
                del self.num_prompt_logprobs[req_id]
        return done
