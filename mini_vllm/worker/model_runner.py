"""From a step's decisions to arrays, through the model, to sampled tokens.

Mirrors `vllm/v1/worker/gpu_model_runner.py` (`_update_states` 1116, `_prepare_inputs` 1863, `execute_model`
3955, `sample_tokens` 4320). A step comes in two calls, as upstream: what must happen between the model and
the sampler finds its place there. All requests of a step are laid end to end in flat arrays.

There is one runner. What runs the model, numpy or torch, plainly or as a graph, is its `forward`
(`forward.py`); what an ability adds to a step is a component (`components.py`).

With asynchronous scheduling a step is planned with places for tokens that are not known yet. What was
sampled is written into the request's row at once, so the next step, which begins after this one, finds
its input there; upstream keeps it on the device, as `prev_sampled_token_ids`, for the same purpose
(`vllm/v1/worker/gpu_model_runner.py:3591 in GPUModelRunner._bookkeeping_sync`).

Left out: multi-modal inputs. Upstream also samples rows that are still in the middle of
their prompt and throws the token away; here only rows that have caught up are sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.kv_cache_groups import get_kv_cache_config, get_places_of_layers
from mini_vllm.core.kv_cache_interface import SlidingWindowSpec
from mini_vllm.core.sched.output import (
    DraftTokenIds,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.sample.logitsprocs import build_logitsprocs
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.ops import LogprobsLists, compute_logprobs, gather_logprobs
from mini_vllm.sample.sampler import Sampler
from mini_vllm.utils.math import cdiv
from mini_vllm.worker.components import ExecuteModelState, LoRA, NoLoRA, NoSpeculation, Speculation
from mini_vllm.worker.forward import ModelForward, NumpyForward, with_kv_cache_dtype
from mini_vllm.worker.gpu_input_batch import CachedRequestState, InputBatch, Ints

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array
    from mini_vllm.lora.request import LoadedLoRARequest
    from mini_vllm.worker.components import GrammarRows


class ModelRunner:
    """Executes steps. Owns the persistent batch, and through `forward` the KV cache arrays.

    Args:
        model: the model; its attention backend decides the layout of the KV cache.
        config: the engine's.
        sampler: the sampler to use.
        make_forward: `(model, config, kv_cache_config)`, makes what runs the model.
        make_speculation: `(model, config, sampler, input_batch)`, makes what drafts; None: nothing does.
        lora: what adds adapters to this model's layers; None: nothing does.

    Raises ValueError if the arrays are more than the machine's memory, and as the parts do.
    """

    def __init__(
        self,
        model: ModelForTextGeneration,
        config: ResolvedConfig,
        sampler: Sampler,
        make_forward: Callable[..., ModelForward] = NumpyForward,
        make_speculation: Callable[..., Speculation] | None = None,
        lora: LoRA | None = None,
    ) -> None:
        self.model = model = with_kv_cache_dtype(model, config.kv_cache_dtype)
        self.sampler = sampler
        self.lora: LoRA = lora or NoLoRA()
        self.logitsprocs = build_logitsprocs(config, config.logits_processors)
        self.block_size = config.block_size
        self.vocab_size = model.config.vocab_size
        rows = config.max_num_seqs
        self.kv_cache_config = get_kv_cache_config(
            model.config, config.block_size, config.num_gpu_blocks
        )
        groups = self.kv_cache_config.kv_cache_groups
        kv_specs = [group.kv_cache_spec for group in groups]
        self.sliding_windows = [
            kv_spec.sliding_window if isinstance(kv_spec, SlidingWindowSpec) else None
            for kv_spec in kv_specs
        ]
        self._group_of_layers = [group_id for group_id, _ in get_places_of_layers(groups)]
        try:
            self.input_batch = InputBatch(
                rows, config.max_model_len, config.block_size, len(groups)
            )
            self.speculation: Speculation = (
                make_speculation(model, config, sampler, self.input_batch)
                if make_speculation
                else NoSpeculation()
            )
            # The last: it may capture the model, and an EAGLE head has told that what to give.
            self.forward = make_forward(model, config, self.kv_cache_config)
        except MemoryError as error:
            raise ValueError(
                f"num_gpu_blocks ({config.num_gpu_blocks}) and max_num_seqs ({rows}) need more "
                f"memory than there is: {error}"
            ) from error
        self.kv_caches = self.forward.kv_caches
        self.requests: dict[str, CachedRequestState] = {}
        self.num_prompt_logprobs: dict[str, int] = {}  # of requests that still wait for theirs
        self.execute_model_state: ExecuteModelState | None = None
        self._metadata: tuple[list[CachedRequestState], SamplingMetadata] | None = None

    # -- state ------------------------------------------------------------------------------------

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        """Apply what the scheduler says has changed
        (`vllm/v1/worker/gpu_model_runner.py:1116 GPUModelRunner._update_states`)."""
        batch = self.input_batch
        for req_id in scheduler_output.finished_req_ids:
            if req_id in self.requests:
                self._remove_from_batch(self.requests.pop(req_id))
                self.num_prompt_logprobs.pop(req_id, None)
        for req_id in scheduler_output.preempted_req_ids | scheduler_output.reset_req_ids:
            self._remove_from_batch(self.requests[req_id])

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
                batch.add_request(self.requests[req_id])
            batch.block_table.append_row(block_ids, batch.req_id_to_index[req_id])
        if cached.req_ids:
            batch.num_computed_tokens[batch.rows_of(cached.req_ids)] = cached.num_computed_tokens
            self.speculation.correct_num_computed_tokens(cached.req_ids)
        for new in scheduler_output.scheduled_new_reqs:
            self._add_request(new)

    def _add_request(self, new: NewRequestData) -> None:
        state = CachedRequestState(
            new.req_id, new.prompt_token_ids, new.sampling_params, new.lora_request
        )
        self.requests[new.req_id] = state
        wanted = new.sampling_params.prompt_logprobs
        if wanted is not None:
            self.num_prompt_logprobs[new.req_id] = self.vocab_size if wanted == -1 else wanted
        row = self.input_batch.add_request(state)
        self.input_batch.block_table.append_row(new.block_ids, row)
        self.input_batch.num_computed_tokens[row] = new.num_computed_tokens

    def _remove_from_batch(self, state: CachedRequestState) -> None:
        self.input_batch.remove_request(state)
        self.speculation.forget(state.req_id)

    # -- one step ---------------------------------------------------------------------------------

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """Run one step up to its hidden states. None: `sample_tokens` gives the result
        (`vllm/v1/worker/gpu_model_runner.py:3955 GPUModelRunner.execute_model`)."""
        with self.forward.step():
            self._update_states(scheduler_output)
            req_ids = list(scheduler_output.num_scheduled_tokens)
            if not req_ids:
                return ModelRunnerOutput([], {}, [])
            rows = self.input_batch.rows_of(req_ids)
            num_scheduled_tokens = np.array(
                [*scheduler_output.num_scheduled_tokens.values()], np.int32
            )
            self.lora.set_active_loras(req_ids, num_scheduled_tokens, self.requests)
            num_draft_tokens = self.speculation.write_drafts(
                req_ids, scheduler_output.scheduled_spec_decode_tokens
            )
            input_ids, positions, attn_metadata = self._prepare_inputs(rows, num_scheduled_tokens)
            aux: list[Any] | None = [] if self.speculation.use_aux_hidden_states else None
            hidden_states = self._model_forward(input_ids, positions, attn_metadata, aux)
        self.execute_model_state = ExecuteModelState(
            req_ids, rows, num_draft_tokens, input_ids, positions, attn_metadata, hidden_states, aux
        )
        return None

    def sample_tokens(self, grammar_output: GrammarRows | None = None) -> ModelRunnerOutput:
        """Sample for every request of the step that has caught up, and draft for the next step
        (`vllm/v1/worker/gpu_model_runner.py:4320 GPUModelRunner.sample_tokens`).

        `grammar_output`: what grammars allow; None: no request that samples has a rule.
        """
        state, self.execute_model_state = self.execute_model_state, None
        assert state is not None, "execute_model comes first"
        batch, md = self.input_batch, state.attn_metadata
        index = {req_id: i for i, req_id in enumerate(state.req_ids)}
        result = ModelRunnerOutput(state.req_ids, index, [[] for _ in state.req_ids])
        result.cudagraph_stats = self.forward.stat
        with self.forward.step():
            result.prompt_logprobs_dict = self._get_prompt_logprobs_dict(
                index, md, state.hidden_states
            )
            # A request in the middle of its prompt has nothing to sample.
            num_tokens = batch.num_tokens[state.rows] + state.num_draft_tokens
            caught_up = np.flatnonzero(md.seq_lens == num_tokens)
            sampling_metadata = None
            if len(caught_up):
                states = [self.requests[state.req_ids[i]] for i in caught_up]
                sampling_metadata = self._sampling_metadata(states)
                sampled = self._sample(
                    state, caught_up, states, sampling_metadata, result, grammar_output
                )
                batch.append_tokens(state.rows[caught_up], sampled)
                for i, request, token_ids in zip(caught_up, states, sampled, strict=True):
                    request.output_token_ids.extend(token_ids)
                    result.sampled_token_ids[i] = token_ids
            self.speculation.propose(
                state, caught_up, result.sampled_token_ids, sampling_metadata, self.forward.to_numpy
            )
        return result

    def take_draft_token_ids(self, req_ids: list[str] | None = None) -> DraftTokenIds | None:
        """What was drafted for the next step, of the last one's requests or of these."""
        return self.speculation.take_draft_token_ids(req_ids)

    def add_lora(self, lora_request: LoadedLoRARequest) -> None:
        """Bring an adapter into memory and a slot, between two steps."""
        self.lora.add_lora(lora_request)

    def list_loras(self) -> set[int]:
        """The ids of the adapters in memory."""
        return self.lora.list_loras()

    def _prepare_inputs(
        self, rows: Ints, num_scheduled_tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, AttentionMetadata]:
        """Lay the step's tokens end to end.

        Args:
            rows: [num_reqs], the requests' rows.
            num_scheduled_tokens: int32 [num_reqs].

        Returns `input_ids` and `positions`, int [num_tokens], and the attention metadata: the first
        group's; if there are several, its `layers` has those of all layers.
        """
        batch = self.input_batch
        num_computed_tokens = batch.num_computed_tokens[rows]
        seq_lens = num_computed_tokens + num_scheduled_tokens
        query_start_loc = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(num_scheduled_tokens, out=query_start_loc[1:])
        # [2, 3] scheduled: requests 0 0 1 1 1, and 0 1 0 1 2 tokens past what was computed.
        req_indices = np.repeat(np.arange(len(rows)), num_scheduled_tokens)
        arange = np.arange(len(req_indices), dtype=np.int32) - query_start_loc[req_indices]
        positions = num_computed_tokens[req_indices] + arange
        token_rows = rows[req_indices]
        num_blocks = cdiv(int(seq_lens.max()), self.block_size)
        of_groups = [
            AttentionMetadata(
                query_start_loc=query_start_loc,
                seq_lens=seq_lens,
                block_table=block_table.table[rows, :num_blocks],
                slot_mapping=block_table.compute_slot_mapping(token_rows, positions),
                block_size=self.block_size,
                sliding_window=window,
            )
            for block_table, window in zip(
                batch.block_table.block_tables, self.sliding_windows, strict=True
            )
        ]
        attn_metadata = of_groups[0]
        if len(of_groups) > 1:
            layers = [of_groups[group_id] for group_id in self._group_of_layers]
            attn_metadata = replace(attn_metadata, layers=layers)
        return batch.token_ids[token_rows, positions], positions, attn_metadata

    def _model_forward(
        self,
        input_ids: Ints,
        positions: Ints,
        attn_metadata: AttentionMetadata,
        aux_hidden_states: list[Any] | None = None,
    ) -> Any:
        """Hidden states of the step's tokens, in the model's own kind of array."""
        return self.forward.run(input_ids, positions, attn_metadata, aux_hidden_states)

    def _sample(
        self,
        state: ExecuteModelState,
        caught_up: Ints,
        states: list[CachedRequestState],
        sampling_metadata: SamplingMetadata,
        result: ModelRunnerOutput,
        grammar_output: GrammarRows | None = None,
    ) -> list[list[int]]:
        """The new tokens of these requests of the step: one each, or with drafts those that were accepted
        and one more (`vllm/v1/worker/gpu_model_runner.py:3481 GPUModelRunner._sample`). Adds the logprobs
        asked for to `result`."""
        metadata = self.speculation.get_metadata(state, caught_up)
        logits_indices = state.attn_metadata.query_start_loc[1:][caught_up] - 1
        if metadata is not None:  # drafts have rows, too
            logits_indices = metadata.logits_indices
        logits = self.forward.compute_logits(state.hidden_states, logits_indices)
        if grammar_output is not None:
            logits = grammar_output.apply(logits, [request.req_id for request in states])
        if metadata is not None:
            return self.speculation.sample(logits, metadata, states, sampling_metadata, result)
        return [[token_id] for token_id in self._sample_rows(logits, states, result).tolist()]

    def _sample_rows(
        self, logits: Array, states: list[CachedRequestState], result: ModelRunnerOutput
    ) -> np.ndarray:
        """One token a row of logits; int64 [len(states)]."""
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
                rows = np.arange(start, start + last - first)
                logits = self.forward.compute_logits(hidden_states, rows)
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
