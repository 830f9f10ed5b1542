"""The component of an engine that speculates: drafts written, judged and made, around a step.

Mirrors what `vllm/v1/worker/gpu_model_runner.py` does where there is a `speculative_config`: `_sample`
3481, `_bookkeeping_sync` 3514, `propose_draft_token_ids` 4750. `NoSpeculation` stands in its place where
there is none.

A request's drafts stand in its row behind its tokens, and are inputs like them. Each of them, and the token
before them, gives a row of logits. What the rejection sampler keeps is written over them. What it
does not keep was computed all the same: its K and V stand in their slots until the request's next tokens
come there.

With asynchronous scheduling the worker is not told which drafts to check, only how many: it made them. And
a plan counts all drafts of the step before as accepted, because it was made before they were judged. The
worker knows by then, and corrects the count.

A drafter computes in numpy, whatever the target computes in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.backend import Array
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.kv_cache_groups import get_kv_cache_config
from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.ops import FloatArray, LogprobsLists
from mini_vllm.sample.rejection_sampler import RejectionSampler
from mini_vllm.sample.sampler import Sampler
from mini_vllm.spec_decode.draft_model import DraftModelProposer
from mini_vllm.spec_decode.eagle import EagleProposer
from mini_vllm.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from mini_vllm.spec_decode.loading import load_drafter
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata
from mini_vllm.spec_decode.ngram_proposer import NgramProposer
from mini_vllm.utils.math import cdiv
from mini_vllm.worker.components import ExecuteModelState
from mini_vllm.worker.forward import allocate_kv_caches, kv_cache_shape, with_kv_cache_dtype
from mini_vllm.worker.gpu_input_batch import CachedRequestState, InputBatch, Ints


class TokenProposer(Protocol):
    """A drafter that looks at tokens only, as `NgramProposer` does."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
    ) -> list[list[int]]: ...


Drafter = TokenProposer | SpecDecodeBaseProposer


def make_drafter(config: ResolvedConfig, model: ModelForTextGeneration) -> Drafter:
    """The drafter that `speculative_config` asks for
    (`vllm/v1/worker/gpu_model_runner.py:549 in GPUModelRunner.__init__`).

    Raises ValueError where drafter and model do not go together, CheckpointError for a drafter that cannot
    be read.
    """
    speculation = config.speculation
    assert speculation is not None
    if speculation.method == "ngram":
        return NgramProposer(config)
    drafter = load_drafter(speculation, model)
    cls = DraftModelProposer if speculation.uses_draft_model() else EagleProposer
    return cls(config, model, drafter)


class SpecDecode:
    """Checks the drafts of a step and drafts for the next.

    Args:
        model: the target.
        config: `num_gpu_blocks` and `max_model_len` must be set.
        sampler: of the target.
        input_batch: the runner's.
        make_drafter: `(config, model)`, makes what drafts.
        make_rejection_sampler: `(sampler, speculative_config)`, makes what judges.

    Raises ValueError as those do, and for a drafter with a KV cache beside a model with windows: vLLM lets
    a drafter's layers join one of the groups; here such a drafter has the block table of full attention, of
    which there must be one.
    """

    def __init__(
        self,
        model: ModelForTextGeneration,
        config: ResolvedConfig,
        sampler: Sampler,
        input_batch: InputBatch,
        make_drafter: Callable[[ResolvedConfig, ModelForTextGeneration], Drafter] = make_drafter,
        make_rejection_sampler: Callable[..., RejectionSampler] = RejectionSampler,
    ) -> None:
        speculation = config.speculation
        assert speculation is not None
        self.batch = input_batch
        self.block_size = config.block_size
        self.vocab_size = model.config.vocab_size
        self.num_spec_tokens = speculation.num_spec_tokens
        self.rejection_sampler = make_rejection_sampler(sampler, speculation)
        self.drafter = drafter = make_drafter(config, model)
        self.use_aux_hidden_states = (
            isinstance(drafter, EagleProposer) and drafter.use_aux_hidden_state
        )
        self.effective_drafter_max_model_len = config.max_model_len
        if isinstance(drafter, SpecDecodeBaseProposer):
            if not get_kv_cache_config(model.config, config.block_size, 1).is_plain:
                raise ValueError(
                    f"speculative_config: method {speculation.method!r} is not supported for this "
                    f"{model.config.architecture}, which attends to a sliding window: only 'ngram' is"
                )
            self.effective_drafter_max_model_len = drafter.max_model_len
            drafter.model = with_kv_cache_dtype(drafter.model, config.kv_cache_dtype)
            shape = kv_cache_shape(drafter.model, config.num_gpu_blocks, config.block_size)
            groups = get_kv_cache_config(
                drafter.model.config, config.block_size, config.num_gpu_blocks
            )
            drafter.kv_caches = allocate_kv_caches(
                drafter.model, shape, config.kv_cache_dtype, groups
            )
        self._draft_token_ids: dict[str, list[int]] = {}  # of each request, made last
        # What they were drawn from, with `probabilistic`.
        self._draft_probs: dict[str, FloatArray] = {}
        self._draft_req_ids: list[str] = []  # of the last step

    # -- before the step --------------------------------------------------------------------------

    def correct_num_computed_tokens(self, req_ids: list[str]) -> None:
        """All tokens of a request but the newest are computed. A plan says more where it counts drafts that
        were rejected meanwhile
        (`vllm/v1/worker/gpu_model_runner.py:1301 in GPUModelRunner._update_states`)."""
        batch = self.batch
        rows = batch.rows_of(req_ids)
        batch.num_computed_tokens[rows] = np.minimum(
            batch.num_computed_tokens[rows], batch.num_tokens[rows] - 1
        )

    def forget(self, req_id: str) -> None:
        self._draft_token_ids.pop(req_id, None)
        self._draft_probs.pop(req_id, None)

    def write_drafts(self, req_ids: list[str], scheduled: Mapping[str, list[int]]) -> Ints:
        """Write the drafts that are to be checked behind the tokens of their requests. Returns how many each
        request has, `[len(req_ids)]`.
        Source: `vllm/v1/worker/gpu_input_batch.py:483 InputBatch.update_req_spec_token_ids`."""
        batch = self.batch
        num_draft_tokens = np.zeros(len(req_ids), np.int64)
        for i, req_id in enumerate(req_ids):
            spec_token_ids = scheduled.get(req_id)
            if not spec_token_ids:
                continue
            num_drafts = num_draft_tokens[i] = len(spec_token_ids)
            if spec_token_ids[0] == -1:  # placeholders: the drafts are here, or zeros stand in
                drafts = self._draft_token_ids.get(req_id, [])
                spec_token_ids = [*drafts, *[0] * num_drafts][:num_drafts]
            row = batch.req_id_to_index[req_id]
            start = batch.num_tokens[row]
            batch.token_ids[row, start : start + num_drafts] = spec_token_ids
        return num_draft_tokens

    # -- after the forward pass -------------------------------------------------------------------

    def get_metadata(self, state: ExecuteModelState, caught_up: Ints) -> SpecDecodeMetadata | None:
        assert not isinstance(state.num_draft_tokens, int)
        num_draft_tokens = state.num_draft_tokens[caught_up]
        if not num_draft_tokens.any():
            return None
        ends = state.attn_metadata.query_start_loc[1:][caught_up]
        return SpecDecodeMetadata.build(num_draft_tokens, ends, state.input_ids)

    def sample(
        self,
        logits: Array,
        metadata: SpecDecodeMetadata,
        states: list[CachedRequestState],
        sampling_metadata: SamplingMetadata,
        result: ModelRunnerOutput,
    ) -> list[list[int]]:
        """The tokens that each request gets: one, and before it those of its drafts that are accepted
        (`vllm/v1/worker/gpu_model_runner.py:3481 GPUModelRunner._sample`)."""
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
                    if state.req_id in self._draft_token_ids:
                        return None
                    probs = np.zeros((num_drafts, self.vocab_size), np.float32)
                    probs[:, 0] = 1  # what stands in is certain
                parts.append(probs[:num_drafts])
        return np.concatenate(parts)

    # -- for the next step ------------------------------------------------------------------------

    def propose(
        self,
        state: ExecuteModelState,
        caught_up: Ints,
        sampled_token_ids: list[list[int]],
        sampling_metadata: SamplingMetadata | None,
        to_numpy: Callable[[Any], Array],
    ) -> None:
        """Draft for the next step
        (`vllm/v1/worker/gpu_model_runner.py:4750 GPUModelRunner.propose_draft_token_ids`)."""
        self._draft_req_ids = req_ids = state.req_ids
        longest_after_drafts = state.attn_metadata.max_seq_len + self.num_spec_tokens
        if longest_after_drafts > self.effective_drafter_max_model_len:
            # One request is near the end: none drafts. Tokens 0 stand in, and are checked like drafts.
            self._store_drafts(req_ids, [[0] * self.num_spec_tokens] * len(req_ids))
        elif isinstance(self.drafter, SpecDecodeBaseProposer):
            num_rejected_tokens = np.zeros(len(req_ids), np.int32)
            assert not isinstance(state.num_draft_tokens, int)
            for i in caught_up:
                num_rejected_tokens[i] = state.num_draft_tokens[i] + 1 - len(sampled_token_ids[i])
            self._propose_by_model(
                state, self._hidden_states(state, to_numpy), num_rejected_tokens, caught_up,
                sampling_metadata,
            )  # fmt: skip
        else:
            batch, rows = self.batch, state.rows
            drafts = self.drafter.propose(
                sampled_token_ids, batch.num_tokens[rows], batch.token_ids[rows]
            )
            self._store_drafts(req_ids, drafts)

    def _hidden_states(
        self, state: ExecuteModelState, to_numpy: Callable[[Any], Array]
    ) -> Array | None:
        """The target's, as an EAGLE head reads them; None for a draft model, which reads none."""
        if not isinstance(self.drafter, EagleProposer):
            return None
        if state.aux_hidden_states is None:
            return to_numpy(state.hidden_states)
        return self.drafter.combine_hidden_states(
            [to_numpy(hidden_states) for hidden_states in state.aux_hidden_states]
        )

    def _propose_by_model(
        self,
        state: ExecuteModelState,
        target_hidden_states: Array | None,
        num_rejected_tokens: Ints,
        caught_up: Ints,
        sampling_metadata: SamplingMetadata | None,
    ) -> None:
        """After a chunk of a prompt comes not its next token but the prompt's last, as upstream: an EAGLE
        head has a wrong token there for good
        (`vllm/v1/spec_decode/llm_base_proposer.py:913 SpecDecodeBaseProposer.prepare_next_token_ids_padded`).
        """
        drafter, batch, rows = self.drafter, self.batch, state.rows
        assert isinstance(drafter, SpecDecodeBaseProposer)
        md = state.attn_metadata
        num_blocks = cdiv(md.max_seq_len + self.num_spec_tokens, self.block_size)
        attn_metadata = AttentionMetadata(
            md.query_start_loc,
            md.seq_lens,
            batch.block_table[0].table[rows, :num_blocks],
            md.slot_mapping,
            md.block_size,
        )
        drafts = drafter.propose(
            state.input_ids,
            state.positions,
            target_hidden_states,
            batch.token_ids[rows, batch.num_tokens[rows] - 1],
            num_rejected_tokens,
            caught_up,
            attn_metadata,
            sampling_metadata,
        )
        drafting = [state.req_ids[i] for i in caught_up]
        self._store_drafts(drafting, drafts.tolist())
        probs = drafter.take_last_draft_probs()
        if probs is not None:
            self._draft_probs.update(zip(drafting, probs, strict=True))

    def _store_drafts(self, req_ids: list[str], drafts: Sequence[list[int]]) -> None:
        self._draft_token_ids.update(zip(req_ids, drafts, strict=True))
        for req_id in req_ids if self._draft_probs else ():
            self._draft_probs.pop(req_id, None)

    def take_draft_token_ids(self, req_ids: list[str] | None = None) -> DraftTokenIds | None:
        """The drafts for the next step, of these requests or of the last step's; None before any are made."""
        if not self._draft_req_ids:
            return None
        req_ids = req_ids or self._draft_req_ids
        return DraftTokenIds(req_ids, [self._draft_token_ids.get(req_id, []) for req_id in req_ids])
