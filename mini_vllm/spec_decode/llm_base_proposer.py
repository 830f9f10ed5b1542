"""Drafts by a model of its own: the passes that an EAGLE head and a draft model share.

Mirrors `vllm/v1/spec_decode/llm_base_proposer.py:55 SpecDecodeBaseProposer`. After the model has computed a
step and tokens have been sampled, the drafter follows it:

* the **first pass** takes the tokens of the step, so that the drafter's KV cache gets to where the model's
  is, and with them each request's new token. What it says after that token is the first draft;
* every **further pass** takes one token a request, the draft before, and gives the next.

The drafter has KV caches of its own, over the same block tables: a token's K and V have the same slot in
each. What the further passes write stands past what the first one has written, and the first pass of the
next step writes over it. If no draft of a step was rejected, a draft model writes k slots past the step's
tokens, because its first pass takes the new token too, and an EAGLE head k - 1. The scheduler keeps k for
both (`num_lookahead_tokens`).

One pass more or less costs little beside the model's own, so the first one leaves the rejected drafts out.
Upstream, where the host does not know yet which those are, they go along as padding. It also drafts for
requests in the middle of their prompt, and those drafts are not used; here those requests have the first
pass alone. Left out: drafting all tokens in one pass, CUDA graphs, M-RoPE, parallelism.

Shapes below: n requests, m of them draft, k drafts each, V tokens in the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.models.interfaces_base import ModelForTextGeneration
from mini_vllm.sample.generator import TorchGenerator
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.ops import FloatArray, apply_temperature, random_sample, softmax
from mini_vllm.sampling_params import SAMPLING_EPS
from mini_vllm.utils.math import cdiv

Ints = NDArray[np.integer[Any]]


@dataclass
class DraftInputs:
    """The tokens of a pass, requests end to end.

    Attributes:
        input_ids, positions: [num_tokens].
        hidden_states: [num_tokens, hidden_size], what an EAGLE head reads beside them; else None.
        attn_metadata: of the drafter's own attention; its tables reach as far as the last pass writes.
        last_indices: [n], each request's last token, after which a draft stands.
    """

    input_ids: Ints
    positions: Ints
    hidden_states: FloatArray | None
    attn_metadata: AttentionMetadata
    last_indices: Ints


class SpecDecodeBaseProposer:
    """Drafts for the requests of a step.

    Args:
        config: `speculative_config` names the method.
        model: the drafter.
        max_model_len: of the drafter's checkpoint; the shorter of it and the engine's counts.

    Attributes:
        kv_caches: one a layer of the drafter. The runner allocates them.
        max_model_len: how long a request may get with its drafts.
    """

    pass_hidden_states_to_model: ClassVar[bool]

    def __init__(
        self, config: ResolvedConfig, model: ModelForTextGeneration, max_model_len: int
    ) -> None:
        spec = config.speculation
        assert spec is not None
        self.model: Any = model
        self.num_speculative_tokens = spec.num_spec_tokens
        limits = (max_model_len, config.max_model_len, spec.max_model_len or config.max_model_len)
        self.max_model_len = min(limits)
        self.block_size = config.block_size
        self.kv_caches: list[Any] = []
        # A stream of its own, whatever seeds the requests have: they are for the model's draws.
        self.rng = TorchGenerator(config.seed + 1)
        self._enable_probabilistic_draft_probs = (
            spec.rejection_sample_method == "standard"
            and spec.draft_sample_method == "probabilistic"
        )
        self._last_draft_probs: FloatArray | None = None

    def take_last_draft_probs(self) -> FloatArray | None:
        """`[m, k, V]`, what the drafts of the last `propose` were drawn from; None: they count as certain."""
        return self._last_draft_probs

    def propose(
        self,
        target_token_ids: Ints,
        target_positions: Ints,
        target_hidden_states: FloatArray | None,
        next_token_ids: Ints,
        num_rejected_tokens: Ints,
        drafting: Ints,
        attn_metadata: AttentionMetadata,
        sampling_metadata: SamplingMetadata | None,
    ) -> Ints:
        """Drafts, `[m, k]` (`vllm/v1/spec_decode/llm_base_proposer.py:427 SpecDecodeBaseProposer.propose`).

        Args:
            target_token_ids, target_positions, target_hidden_states: what the model has computed, and for
                EAGLE what came out.
            next_token_ids: [n], the token after each request's last one that was not rejected.
            num_rejected_tokens: [n].
            drafting: [m], the requests that draft; the others have the first pass alone.
            attn_metadata: the step's. Its tables reach `k` slots past each request's last token.
            sampling_metadata: of the m requests; None where m is 0.
        """
        self._last_draft_probs = None
        inputs = self.prepare_inputs(
            target_token_ids, target_positions, target_hidden_states, attn_metadata,
            num_rejected_tokens,
        )  # fmt: skip
        inputs = self.set_inputs_first_pass(inputs, next_token_ids)
        last_hidden_states, hidden_states = self._run(inputs)
        if sampling_metadata is None:
            return np.zeros((0, self.num_speculative_tokens), np.int64)
        indices = inputs.last_indices[drafting]
        positions = inputs.positions[indices]
        hidden_states = hidden_states[indices]
        block_table = inputs.attn_metadata.block_table[drafting]
        token_ids, probs = self._sample_draft_tokens(last_hidden_states[indices], sampling_metadata)
        draft_token_ids, draft_probs = [token_ids], [probs]
        for _ in range(self.num_speculative_tokens - 1):
            positions = positions + 1
            inputs = self._one_token_each(token_ids, positions, hidden_states, block_table)
            last_hidden_states, hidden_states = self._run(inputs)
            token_ids, probs = self._sample_draft_tokens(last_hidden_states, sampling_metadata)
            draft_token_ids.append(token_ids)
            draft_probs.append(probs)
        if draft_probs[0] is not None:
            self._last_draft_probs = np.stack([p for p in draft_probs if p is not None], axis=1)
        return np.stack(draft_token_ids, axis=1)

    def prepare_inputs(
        self,
        token_ids: Ints,
        positions: Ints,
        hidden_states: FloatArray | None,
        attn_metadata: AttentionMetadata,
        num_rejected_tokens: Ints,
    ) -> DraftInputs:
        """The step's tokens without the rejected ones, which stand at the end of their requests
        (`vllm/v1/spec_decode/llm_base_proposer.py:1027 SpecDecodeBaseProposer.prepare_inputs`)."""
        md = attn_metadata
        query_start_loc, seq_lens, slot_mapping = md.query_start_loc, md.seq_lens, md.slot_mapping
        if num_rejected_tokens.any():
            query_lens = np.diff(query_start_loc)
            kept_lens = query_lens - num_rejected_tokens
            request = np.repeat(np.arange(len(query_lens)), query_lens)
            place = np.arange(len(request)) - query_start_loc[request]
            kept = np.flatnonzero(place < kept_lens[request])
            query_start_loc = np.concatenate(([0], np.cumsum(kept_lens))).astype(np.int32)
            seq_lens = seq_lens - num_rejected_tokens
            token_ids, positions, slot_mapping = (
                token_ids[kept],
                positions[kept],
                slot_mapping[kept],
            )
            hidden_states = None if hidden_states is None else hidden_states[kept]
        kept_md = AttentionMetadata(
            query_start_loc, seq_lens, md.block_table, slot_mapping, md.block_size
        )
        return DraftInputs(token_ids, positions, hidden_states, kept_md, query_start_loc[1:] - 1)

    def set_inputs_first_pass(self, inputs: DraftInputs, next_token_ids: Ints) -> DraftInputs:
        """What the first pass takes, from the step's tokens and each request's next one
        (`vllm/v1/spec_decode/llm_base_proposer.py:698 SpecDecodeBaseProposer.set_inputs_first_pass`)."""
        raise NotImplementedError

    def _run(self, inputs: DraftInputs) -> tuple[FloatArray, FloatArray]:
        """Hidden states from which logits are made, and those that the next pass reads."""
        raise NotImplementedError

    def _one_token_each(
        self,
        token_ids: Ints,
        positions: Ints,
        hidden_states: FloatArray,
        block_table: NDArray[np.int32],
    ) -> DraftInputs:
        """The inputs of a further pass: one token a request, each at its position [m]."""
        requests = np.arange(len(positions))
        seq_lens = (positions + 1).astype(np.int32)
        attn_metadata = AttentionMetadata(
            query_start_loc=np.arange(len(positions) + 1, dtype=np.int32),
            seq_lens=seq_lens,
            block_table=block_table[:, : cdiv(int(seq_lens.max()), self.block_size)],
            slot_mapping=self._slots(block_table, requests, positions),
            block_size=self.block_size,
        )
        states = hidden_states if self.pass_hidden_states_to_model else None
        return DraftInputs(token_ids, positions, states, attn_metadata, requests)

    def _slots(
        self, block_table: NDArray[np.int32], requests: Ints, positions: Ints
    ) -> NDArray[np.int64]:
        block_numbers = block_table[requests, positions // self.block_size].astype(np.int64)
        slots: NDArray[np.int64] = block_numbers * self.block_size + positions % self.block_size
        return slots

    def _sample_draft_tokens(
        self, hidden_states: FloatArray, sampling_metadata: SamplingMetadata
    ) -> tuple[Ints, FloatArray | None]:
        """One draft a request `[m]`, and with `probabilistic` what it was drawn from `[m, V]`
        (`vllm/v1/spec_decode/llm_base_proposer.py:414 SpecDecodeBaseProposer._sample_draft_tokens`)."""
        logits = self.model.compute_logits(hidden_states)
        if not self._enable_probabilistic_draft_probs or sampling_metadata.temperature is None:
            return logits.argmax(axis=-1), None
        return compute_probs_and_sample_next_token(logits, sampling_metadata, self.rng)


def compute_probs_and_sample_next_token(
    logits: FloatArray, sampling_metadata: SamplingMetadata, rng: TorchGenerator
) -> tuple[Ints, FloatArray]:
    """Draw from the `[m, V]` logits with each request's temperature, and nothing else that it asks for:
    what is drawn only has to be judged by what it was drawn from
    (`vllm/v1/spec_decode/llm_base_proposer.py:1654 compute_probs_and_sample_next_token`)."""
    temperature = sampling_metadata.temperature
    assert temperature is not None
    probs = softmax(apply_temperature(logits, temperature, sampling_metadata.all_random))
    drawn = random_sample(probs, {}, rng)
    return np.where(temperature < SAMPLING_EPS, probs.argmax(axis=-1), drawn), probs
