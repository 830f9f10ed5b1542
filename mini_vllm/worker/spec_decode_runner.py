"""The model runner of an engine that speculates.

Mirrors what `vllm/v1/worker/gpu_model_runner.py` does where there is a `speculative_config`: `_sample`
3481, `_bookkeeping_sync` 3514, `sample_tokens` 4320, `propose_draft_token_ids` 4750. `model_runner.py` knows
nothing of any of this.

A request's drafts stand in its row behind its tokens, and are inputs like them. Each of them, and the token
before them, gives a row of logits. What the rejection sampler keeps is written over them. What it
does not keep was computed all the same: its K and V stand in their slots until the request's next tokens
come there.

With asynchronous scheduling nobody tells the worker which drafts to check, only how many: it made
them. And a plan counts all drafts of the step before as accepted, because it was made before anybody
knew. The worker knows by then, and corrects the count (`_update_states`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput, SchedulerOutput
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.ops import FloatArray, LogprobsLists
from mini_vllm.sample.rejection_sampler import RejectionSampler
from mini_vllm.sample.sampler import Sampler
from mini_vllm.spec_decode.draft_model import DraftModelProposer
from mini_vllm.spec_decode.eagle import EagleProposer
from mini_vllm.spec_decode.llm_base_proposer import Ints, SpecDecodeBaseProposer
from mini_vllm.spec_decode.loading import load_drafter
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata
from mini_vllm.spec_decode.ngram_proposer import NgramProposer
from mini_vllm.utils.math import cdiv
from mini_vllm.worker.hybrid_model_runner import HybridModelRunner
from mini_vllm.worker.model_runner import (
    CachedRequestState,
    ModelRunner,
    allocate_kv_caches,
    kv_cache_shape,
    with_kv_cache_dtype,
)


class TokenProposer(Protocol):
    """A drafter that looks at tokens only, as `NgramProposer` does."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
    ) -> list[list[int]]: ...


Drafter = TokenProposer | SpecDecodeBaseProposer


def make_drafter(config: EngineConfig, model: LlamaForCausalLM) -> Drafter:
    """The drafter that `speculative_config` asks for
    (`vllm/v1/worker/gpu_model_runner.py:549 in GPUModelRunner.__init__`).

    Raises ValueError where drafter and model do not go together, CheckpointError for a drafter that cannot
    be read.
    """
    spec = config.speculation
    assert spec is not None
    if spec.method == "ngram":
        return NgramProposer(config)
    drafter = load_drafter(spec, model)
    cls = DraftModelProposer if spec.uses_draft_model() else EagleProposer
    return cls(config, model, drafter)


class SpecDecodeModelRunner(ModelRunner):
    """Executes steps, checks the drafts in them and drafts for the next. Arguments are those of
    `ModelRunner`, and

    Args:
        make_drafter: `(config, model)`, makes who drafts.
        make_rejection_sampler: `(sampler, speculative_config)`, makes who judges.

    Raises ValueError as those do.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        config: EngineConfig,
        sampler: Sampler,
        make_drafter: Callable[[EngineConfig, LlamaForCausalLM], Drafter] = make_drafter,
        make_rejection_sampler: Callable[..., RejectionSampler] = RejectionSampler,
    ) -> None:
        super().__init__(model, config, sampler)
        spec = config.speculation
        assert spec is not None and config.max_model_len is not None
        assert config.num_gpu_blocks is not None
        self.num_spec_tokens = spec.num_spec_tokens
        self.rejection_sampler = make_rejection_sampler(sampler, spec)
        self.drafter = drafter = make_drafter(config, self.model)
        self.effective_drafter_max_model_len = config.max_model_len
        if isinstance(drafter, SpecDecodeBaseProposer):
            self.effective_drafter_max_model_len = drafter.max_model_len
            drafter.model = with_kv_cache_dtype(drafter.model, self.kv_cache_dtype)
            shape = kv_cache_shape(drafter.model, config.num_gpu_blocks, config.block_size)
            drafter.kv_caches = allocate_kv_caches(drafter.model, shape, self.kv_cache_dtype)
        self._draft_token_ids: dict[str, list[int]] = {}  # of each request, made last
        self._draft_probs: dict[
            str, FloatArray
        ] = {}  # what they were drawn from, with `probabilistic`
        self._draft_req_ids: list[str] = []  # of the last step

    # -- state ------------------------------------------------------------------------------------

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        """As in `ModelRunner`; and a plan that took drafts for accepted is put right.

        All tokens of a request but the newest are computed. A plan says more where it counts drafts that
        were rejected meanwhile (`vllm/v1/worker/gpu_model_runner.py:1301 in GPUModelRunner._update_states`).
        """
        super()._update_states(scheduler_output)
        rows = [self.row_of[req_id] for req_id in scheduler_output.scheduled_cached_reqs.req_ids]
        num_computed_tokens = np.minimum(self.num_computed_tokens[rows], self.num_tokens[rows] - 1)
        self.num_computed_tokens[rows] = num_computed_tokens

    def _take_row(self, state: CachedRequestState) -> None:
        """A drafter may write past the blocks of a request that was just admitted, which has no slots kept
        for it yet. So the table goes on with zeros: block 0 is nobody's."""
        super()._take_row(state)
        self.block_table[state.row] = 0

    def _release_row(self, state: CachedRequestState) -> None:
        super()._release_row(state)
        self._draft_token_ids.pop(state.req_id, None)
        self._draft_probs.pop(state.req_id, None)

    def _put_drafts(self, req_ids: list[str], scheduled: dict[str, list[int]]) -> Ints:
        """Write the drafts that are to be checked behind the tokens of their requests. Returns how many each
        request has, `[len(req_ids)]`."""
        num_draft_tokens = np.zeros(len(req_ids), np.int64)
        for i, req_id in enumerate(req_ids):
            spec_token_ids = scheduled.get(req_id)
            if not spec_token_ids:
                continue
            num_drafts = num_draft_tokens[i] = len(spec_token_ids)
            if spec_token_ids[0] == -1:  # placeholders: the drafts are here
                spec_token_ids = self._draft_token_ids[req_id][:num_drafts]
            row = self.row_of[req_id]
            start = self.num_tokens[row]
            self.token_ids[row, start : start + num_drafts] = spec_token_ids
        return num_draft_tokens

    # -- one step ---------------------------------------------------------------------------------

    def _execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        self._update_states(scheduler_output)
        req_ids = list(scheduler_output.num_scheduled_tokens)
        index = {req_id: i for i, req_id in enumerate(req_ids)}
        if not req_ids:
            return ModelRunnerOutput([], {}, [])
        rows = np.array([self.row_of[req_id] for req_id in req_ids])
        num_scheduled_tokens = np.array([*scheduler_output.num_scheduled_tokens.values()], np.int32)
        num_drafts = self._put_drafts(req_ids, scheduler_output.scheduled_spec_decode_tokens)
        inputs = self._prepare_inputs(rows, num_scheduled_tokens)
        input_ids, _, attn_metadata = inputs
        hidden_states, target_hidden_states = self._forward_for_drafter(*inputs)

        result = ModelRunnerOutput(req_ids, index, [[] for _ in req_ids])
        result.prompt_logprobs_dict = self._get_prompt_logprobs_dict(
            index, attn_metadata, hidden_states
        )
        caught_up = np.flatnonzero(attn_metadata.seq_lens == self.num_tokens[rows] + num_drafts)
        states = [self.requests[req_ids[i]] for i in caught_up]
        sampling_metadata = None
        num_rejected_tokens = np.zeros(len(req_ids), np.int32)
        if states:
            sampling_metadata = self._sampling_metadata(states)
            metadata = SpecDecodeMetadata.build(
                num_drafts[caught_up], attn_metadata.query_start_loc[1:][caught_up], input_ids
            )
            logits = self._compute_logits(hidden_states, metadata.logits_indices)
            sampled = self._sample_spec(logits, metadata, states, sampling_metadata, result)
            self._remember(states, sampled)
            for i, token_ids in zip(caught_up, sampled, strict=True):
                num_rejected_tokens[i] = num_drafts[i] + 1 - len(token_ids)
                result.sampled_token_ids[i] = token_ids

        self._draft_req_ids = req_ids
        fits = attn_metadata.max_seq_len + self.num_spec_tokens
        if fits > self.effective_drafter_max_model_len:
            # Somebody is near the end: nobody drafts. Tokens 0 stand in, and are checked like drafts.
            self._keep_drafts(req_ids, [[0] * self.num_spec_tokens] * len(req_ids))
        elif isinstance(self.drafter, SpecDecodeBaseProposer):
            self._propose_by_model(
                req_ids, rows, inputs, target_hidden_states, num_rejected_tokens, caught_up,
                sampling_metadata,
            )  # fmt: skip
        else:
            sampled_token_ids = result.sampled_token_ids
            drafts = self.drafter.propose(
                sampled_token_ids, self.num_tokens[rows], self.token_ids[rows]
            )
            self._keep_drafts(req_ids, drafts)
        return result

    def _forward_for_drafter(
        self, input_ids: Ints, positions: Ints, attn_metadata: AttentionMetadata
    ) -> tuple[Any, Any]:
        """The hidden states of the step's tokens, and those that an EAGLE head reads."""
        drafter = self.drafter
        if not isinstance(drafter, EagleProposer) or not drafter.use_aux_hidden_state:
            hidden_states = self._model_forward(input_ids, positions, attn_metadata)
            return hidden_states, hidden_states
        aux_hidden_states: list[Any] = []
        hidden_states = self.model.forward(
            input_ids, positions, self.kv_caches, attn_metadata, aux_hidden_states
        )
        return hidden_states, drafter.combine_hidden_states(aux_hidden_states)

    def _sample_spec(
        self,
        logits: FloatArray,
        metadata: SpecDecodeMetadata,
        states: list[CachedRequestState],
        sampling_metadata: SamplingMetadata,
        result: ModelRunnerOutput,
    ) -> list[list[int]]:
        """The tokens that each request gets: one, and before it those of its drafts that are accepted
        (`vllm/v1/worker/gpu_model_runner.py:3481 GPUModelRunner._sample`)."""
        if metadata.max_spec_len == 0:
            req_ids = [state.req_id for state in states]
            return [[token] for token in self._sample(logits, req_ids, result).tolist()]
        draft_probs = self._get_spec_decode_draft_probs(states, metadata.num_draft_tokens)
        out = self.rejection_sampler(metadata, draft_probs, logits, sampling_metadata)
        sampled, logprobs = RejectionSampler.parse_output(
            out.sampled_token_ids, self.vocab_size, logprobs=out.logprobs
        )
        for state, lists in zip(states, logprobs or (), strict=False):
            wanted = state.sampling_params.logprobs
            if wanted is not None:
                columns = (self.vocab_size if wanted == -1 else wanted) + 1
                result.logprobs[state.req_id] = LogprobsLists(
                    lists.logprob_token_ids[:, :columns],
                    lists.logprobs[:, :columns],
                    lists.sampled_token_ranks,
                )
        return sampled

    def _get_spec_decode_draft_probs(
        self, states: list[CachedRequestState], num_draft_tokens: list[int]
    ) -> FloatArray | None:
        """`[num_tokens, V]`, what the drafts were drawn from; None: they count as certain
        (`vllm/v1/worker/gpu_model_runner.py:4721 GPUModelRunner._get_spec_decode_draft_probs`)."""
        if not self._draft_probs:
            return None
        parts = []
        for state, num_drafts in zip(states, num_draft_tokens, strict=True):
            if num_drafts:
                probs = self._draft_probs.get(state.req_id)
                if probs is None:
                    return None
                parts.append(probs[:num_drafts])
        return np.concatenate(parts)

    def _remember(self, states: list[CachedRequestState], sampled: list[list[int]]) -> None:
        """Write the new tokens over the drafts: they are the next step's input."""
        for state, token_ids in zip(states, sampled, strict=True):
            start = self.num_tokens[state.row]
            self.token_ids[state.row, start : start + len(token_ids)] = token_ids
            self.num_tokens[state.row] += len(token_ids)
            state.output_token_ids.extend(token_ids)

    # -- drafts -----------------------------------------------------------------------------------

    def _propose_by_model(
        self,
        req_ids: list[str],
        rows: Ints,
        inputs: tuple[Ints, Ints, AttentionMetadata],
        target_hidden_states: Any,
        num_rejected_tokens: Ints,
        caught_up: Ints,
        sampling_metadata: SamplingMetadata | None,
    ) -> None:
        """Let a model draft
        (`vllm/v1/worker/gpu_model_runner.py:4750 GPUModelRunner.propose_draft_token_ids`).

        After a chunk of a prompt comes not its next token but the prompt's last, as upstream: an EAGLE head
        has a wrong token there for good
        (`vllm/v1/spec_decode/llm_base_proposer.py:913 SpecDecodeBaseProposer.prepare_next_token_ids_padded`).
        """
        drafter = self.drafter
        assert isinstance(drafter, SpecDecodeBaseProposer)
        input_ids, positions, attn_metadata = inputs
        most_blocks = cdiv(attn_metadata.max_seq_len + self.num_spec_tokens, self.block_size)
        attn_metadata = AttentionMetadata(
            attn_metadata.query_start_loc,
            attn_metadata.seq_lens,
            self.block_table[rows, :most_blocks],
            attn_metadata.slot_mapping,
            attn_metadata.block_size,
        )
        drafts = drafter.propose(
            input_ids,
            positions,
            target_hidden_states,
            self.token_ids[rows, self.num_tokens[rows] - 1],
            num_rejected_tokens,
            caught_up,
            attn_metadata,
            sampling_metadata,
        )
        drafting = [req_ids[i] for i in caught_up]
        self._keep_drafts(drafting, drafts.tolist())
        probs = drafter.take_last_draft_probs()
        if probs is not None:
            self._draft_probs.update(zip(drafting, probs, strict=True))

    def _keep_drafts(self, req_ids: list[str], drafts: Sequence[list[int]]) -> None:
        self._draft_token_ids.update(zip(req_ids, drafts, strict=True))
        for req_id in req_ids if self._draft_probs else ():
            self._draft_probs.pop(req_id, None)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """The drafts for the next step, of the requests of the last one; None before there are any
        (`vllm/v1/worker/gpu_model_runner.py:4637 GPUModelRunner.take_draft_token_ids`)."""
        if not self._draft_req_ids:
            return None
        drafts = [self._draft_token_ids.get(req_id, []) for req_id in self._draft_req_ids]
        return DraftTokenIds(self._draft_req_ids, drafts)


class HybridSpecDecodeModelRunner(SpecDecodeModelRunner, HybridModelRunner):
    """The same for a model with windows, where drafts come without a model.

    vLLM lets a drafter's layers join one of the groups; here a drafter with a KV cache has the block table of
    full attention, of which there must be one.
    """

    def __init__(
        self, model: LlamaForCausalLM, config: EngineConfig, sampler: Sampler, **parts: Any
    ) -> None:
        super().__init__(model, config, sampler, **parts)
        spec = config.speculation
        if isinstance(self.drafter, SpecDecodeBaseProposer) and spec is not None:
            raise ValueError(
                f"speculative_config: method {spec.method!r} is not supported for this "
                f"{model.config.architecture}, which attends to a sliding window: only 'ngram' is"
            )
