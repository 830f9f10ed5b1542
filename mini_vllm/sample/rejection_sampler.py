"""From the logits of drafted tokens to the tokens that a request keeps.

Mirrors `vllm/v1/sample/rejection_sampler.py`. A request with k drafts gets 1 to k + 1 tokens. Its drafts are
judged in order. The first that is rejected is replaced by a token of the model's, and what comes after it
is dropped. If none is, the bonus token, drawn by the plain `Sampler`, follows the last draft. The kept
tokens are distributed as if the model had drawn each of them by itself.

A draft row is like a row of the plain sampler, whose outputs end with the drafts before it. So penalties, bad
words, allowed tokens, `min_tokens`, temperature, top-k and top-p are the plain sampler's own.

Left out: thinking budgets, the other `logprobs_mode`s. `min_p` and `logit_bias` are refused with
speculative decoding (`vllm/sampling_params.py:780`) and not looked at here.

Shapes below: n requests, `num_tokens` drafts between them, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mini_vllm.config.speculative import MAX_SPEC_LEN, SpeculativeConfig
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.ops import (
    FloatArray,
    IntArray,
    LogprobsLists,
    apply_temperature,
    apply_top_k_top_p,
    compute_logprobs,
    gather_logprobs,
    softmax,
)
from mini_vllm.sample.sampler import Sampler, SamplerOutput

PLACEHOLDER_TOKEN_ID = -1
"""Stands behind a request's last token (`vllm/v1/sample/rejection_sampler.py:30`)."""
GREEDY_TEMPERATURE = 0.0


class DraftRows(Protocol):
    """What the sampler reads of `mini_vllm.spec_decode.metadata.SpecDecodeMetadata`, which stands above
    this package and says what each of them is."""

    @property
    def draft_token_ids(self) -> IntArray: ...
    @property
    def num_draft_tokens(self) -> list[int]: ...
    @property
    def cu_num_sampled_tokens(self) -> IntArray: ...
    @property
    def target_logits_indices(self) -> IntArray: ...
    @property
    def bonus_logits_indices(self) -> IntArray: ...
    @property
    def max_spec_len(self) -> int: ...


def unconditional_to_conditional_rates(rates: Sequence[float]) -> list[float]:
    """From "this draft and all before it are accepted" to "this one, given those before it"
    (`vllm/v1/spec_decode/utils.py:599 unconditional_to_conditional_rates`)."""
    pairs = zip(rates, [1.0, *rates], strict=False)
    return [rate / before if before > 0.0 else 0.0 for rate, before in pairs]


class RejectionSampler:
    """Judges drafts (`vllm/v1/sample/rejection_sampler.py:37 RejectionSampler`).

    Args:
        sampler: draws the bonus tokens. Requests without a seed share its random stream here too.
        spec_config: asks for `synthetic` acceptance; None for the standard rule.
    """

    def __init__(self, sampler: Sampler, spec_config: SpeculativeConfig | None = None) -> None:
        self.sampler = sampler
        self.synthetic_conditional_rates: FloatArray | None = None
        if spec_config is not None and spec_config.rejection_sample_method == "synthetic":
            assert spec_config.synthetic_acceptance_rates is not None
            rates = unconditional_to_conditional_rates(spec_config.synthetic_acceptance_rates)
            self.synthetic_conditional_rates = np.array(rates, np.float32)

    def __call__(
        self,
        metadata: DraftRows,
        draft_probs: FloatArray | None,
        logits: FloatArray,
        sampling_metadata: SamplingMetadata,
    ) -> SamplerOutput:
        """Judge the drafts of a step (`vllm/v1/sample/rejection_sampler.py:87 RejectionSampler.forward`).

        Args:
            metadata: the drafts, and which row of the logits is whose.
            draft_probs: [num_tokens, V], what each draft was drawn from; None: it counts as certain.
            logits: [num_tokens + n, V], left as they are.
            sampling_metadata: of the n requests.

        Returns the tokens, [n, max_spec_len + 1] with `PLACEHOLDER_TOKEN_ID` behind the last, and log
        probabilities of the tokens that are kept, end to end. `parse_output` takes both apart.

        Raises ValueError for more drafts a request than `MAX_SPEC_LEN`, or logits of another shape.
        """
        num_draft_tokens = metadata.num_draft_tokens
        if metadata.max_spec_len > MAX_SPEC_LEN:
            raise ValueError(
                f"a request has at most {MAX_SPEC_LEN} drafts a step, got {metadata.max_spec_len}"
            )
        shape = (sum(num_draft_tokens) + len(num_draft_tokens), sampling_metadata.shape[1])
        if logits.shape != shape:
            raise ValueError(f"logits must have the shape {shape}, got {logits.shape}")
        logits = logits.astype(np.float32, copy=False)
        drafts = np.split(metadata.draft_token_ids, np.cumsum(num_draft_tokens)[:-1])

        bonus_token_ids = self.sample_bonus_tokens(
            logits[metadata.bonus_logits_indices], sampling_metadata, drafts
        )
        draft_rows = sampling_metadata.repeat_rows(
            [(i, ids[:pos].tolist()) for i, ids in enumerate(drafts) for pos in range(len(ids))]
        )
        target_logits = logits[metadata.target_logits_indices]
        target_logits = Sampler.apply_logits_processors(target_logits, draft_rows)
        target_logits = apply_sampling_constraints(target_logits, draft_rows)

        generators, rng = sampling_metadata.generators, self.sampler.rng
        uniform_probs, inv_q = None, None
        if self.synthetic_conditional_rates is not None or not sampling_metadata.all_greedy:
            uniform_probs = generate_uniform_probs(num_draft_tokens, generators, rng)
        if not sampling_metadata.all_greedy:
            inv_q = generate_inv_q(num_draft_tokens, shape[1], generators, rng)
        output_token_ids = rejection_sample(
            metadata.draft_token_ids,
            num_draft_tokens,
            draft_probs,
            target_logits,
            bonus_token_ids,
            sampling_metadata.temperature,
            uniform_probs,
            inv_q,
            self.synthetic_conditional_rates,
        )

        num_logprobs = sampling_metadata.max_num_logprobs
        if num_logprobs is None:
            return SamplerOutput(output_token_ids)
        # Raw logits, as in the plain sampler. The token at a request's place i, draft or not, is judged by
        # its row i.
        requests, places = np.nonzero(output_token_ids != PLACEHOLDER_TOKEN_ID)
        starts = metadata.cu_num_sampled_tokens - np.array(num_draft_tokens) - 1
        logprobs = gather_logprobs(
            compute_logprobs(logits[starts[requests] + places]),
            num_logprobs,
            output_token_ids[requests, places],
        )
        return SamplerOutput(output_token_ids, logprobs)

    def sample_bonus_tokens(
        self, logits: FloatArray, sampling_metadata: SamplingMetadata, drafts: Sequence[IntArray]
    ) -> IntArray:
        """[n, V] logits to [n] tokens, each drawn as if all the drafts of its request were outputs.

        `min_tokens` alone is judged by the outputs before the drafts, as at the pin
        (`vllm/v1/sample/logits_processor/builtin.py:234 MinTokensLogitsProcessor.apply`): a bonus token
        does not end a request whose minimum is reached only with this step's drafts.
        """
        rows = sampling_metadata.repeat_rows([(i, ids.tolist()) for i, ids in enumerate(drafts)])
        with_drafts = replace(
            sampling_metadata,
            bad_words=rows.bad_words,
            penalties=rows.penalties,
            max_num_logprobs=None,
        )
        return self.sampler(logits, with_drafts).sampled_token_ids

    @staticmethod
    def parse_output(
        output_token_ids: IntArray,
        vocab_size: int,
        discard_req_indices: Collection[int] = (),
        logprobs: LogprobsLists | None = None,
    ) -> tuple[list[list[int]], list[LogprobsLists] | None]:
        """Take the placeholders out
        (`vllm/v1/sample/rejection_sampler.py:247 RejectionSampler.parse_output`).

        Args:
            output_token_ids: [n, max_spec_len + 1].
            vocab_size: V; ids from there on are dropped too.
            discard_req_indices: requests whose tokens are not wanted.
            logprobs: of all tokens that are no placeholders, end to end.

        Returns the tokens of each request and, where `logprobs` were given, the log probabilities of each.
        """
        valid_mask = output_token_ids != PLACEHOLDER_TOKEN_ID
        split_logprobs = None
        if logprobs is not None:
            bounds = np.cumsum(valid_mask.sum(axis=1))[:-1]
            columns = [np.split(column, bounds) for column in logprobs]
            split_logprobs = [LogprobsLists(*parts) for parts in zip(*columns, strict=True)]
        valid_mask &= output_token_ids < vocab_size
        valid_mask[list(discard_req_indices)] = False
        outputs = [
            ids[valid].tolist() for ids, valid in zip(output_token_ids, valid_mask, strict=True)
        ]
        return outputs, split_logprobs


def apply_sampling_constraints(logits: FloatArray, draft_rows: SamplingMetadata) -> FloatArray:
    """Temperature, top-k and top-p of the draft rows, [num_tokens, V]
    (`vllm/v1/sample/rejection_sampler.py:506 apply_sampling_constraints`)."""
    if draft_rows.temperature is None or not len(logits):
        return logits
    logits = apply_temperature(logits, draft_rows.temperature, draft_rows.all_random)
    return apply_top_k_top_p(logits, draft_rows.top_k, draft_rows.top_p)


def rejection_sample(
    draft_token_ids: IntArray,
    num_draft_tokens: Sequence[int],
    draft_probs: FloatArray | None,
    target_logits: FloatArray,
    bonus_token_ids: IntArray,
    temperature: FloatArray | None,
    uniform_probs: npt.NDArray[np.float64] | None,
    inv_q: FloatArray | None,
    synthetic_conditional_rates: FloatArray | None = None,
) -> IntArray:
    """Judge each request's drafts in order, on draws that are given
    (`vllm/v1/sample/rejection_sampler.py:392 rejection_sample`).

    Args:
        draft_token_ids: [num_tokens], the requests' drafts end to end.
        num_draft_tokens: [n].
        draft_probs: [num_tokens, V]; None: every draft counts as certain.
        target_logits: [num_tokens, V], after temperature, top-k and top-p.
        bonus_token_ids: [n].
        temperature: [n], 0 in greedy rows; None where all are greedy.
        uniform_probs: [num_tokens] float64; None where all are greedy and nothing is synthetic.
        inv_q: [n, V] float32, from `generate_inv_q`; None where all are greedy.
        synthetic_conditional_rates: accept the draft at place i with rate i, whatever it is; None: the
            standard rule.

    Returns int64 [n, max_spec_len + 1], `PLACEHOLDER_TOKEN_ID` behind a request's last token.
    """
    num_drafts = np.array(num_draft_tokens, np.int64)
    request = np.repeat(np.arange(len(num_drafts)), num_drafts)
    place = np.arange(len(request)) - np.repeat(np.cumsum(num_drafts) - num_drafts, num_drafts)

    # A greedy row accepts its own argmax and nothing else.
    instead = target_logits.argmax(axis=-1)
    accepted = draft_token_ids == instead
    if temperature is not None:
        assert uniform_probs is not None and inv_q is not None
        target_probs = softmax(target_logits)
        is_random = temperature[request] != GREEDY_TEMPERATURE
        recovered = sample_recovered_tokens(
            draft_token_ids, draft_probs, target_probs, inv_q[request]
        )
        instead = np.where(is_random, recovered, instead)
        by_chance = _accept(draft_token_ids, draft_probs, target_probs, uniform_probs)
        accepted = np.where(is_random, by_chance, accepted)
    if synthetic_conditional_rates is not None:
        assert uniform_probs is not None
        accepted = uniform_probs < synthetic_conditional_rates[place]

    # As a table, a row a request: how many drafts stand before the first rejected one?
    table = np.zeros((len(num_drafts), max(num_draft_tokens, default=0) + 1), np.bool_)
    table[request, place] = accepted
    num_accepted = np.logical_and.accumulate(table, axis=1).sum(axis=1)

    output_token_ids = np.full(table.shape, PLACEHOLDER_TOKEN_ID, np.int64)
    output_token_ids[request, place] = np.where(accepted, draft_token_ids, instead)
    every = np.arange(len(num_drafts))
    output_token_ids[every, num_drafts] = bonus_token_ids
    output_token_ids[np.arange(table.shape[1]) > num_accepted[:, None]] = PLACEHOLDER_TOKEN_ID
    return output_token_ids


def _accept(
    draft_token_ids: IntArray,
    draft_probs: FloatArray | None,
    target_probs: FloatArray,
    uniform_probs: npt.NDArray[np.float64],
) -> npt.NDArray[np.bool_]:
    """[num_tokens]: accept x with probability min(1, p(x) / q(x)), where q(x) is 1 for a certain draft
    (`vllm/v1/sample/rejection_sampler.py:762 rejection_random_sample_kernel`)."""
    tokens = np.arange(len(draft_token_ids))
    ratio = target_probs[tokens, draft_token_ids]
    if draft_probs is not None:
        draft_prob = draft_probs[tokens, draft_token_ids]
        # A draft that its own distribution rules out is rejected.
        ratio = np.divide(ratio, draft_prob, out=np.full_like(ratio, -1), where=draft_prob > 0)
    accepted: npt.NDArray[np.bool_] = ratio >= uniform_probs
    return accepted


def sample_recovered_tokens(
    draft_token_ids: IntArray,
    draft_probs: FloatArray | None,
    target_probs: FloatArray,
    inv_q: FloatArray,
) -> IntArray:
    """What to say instead of each draft, [num_tokens], should it be rejected: a draw from the share of the
    target distribution that accepted drafts do not cover
    (`vllm/v1/sample/rejection_sampler.py:659 sample_recovered_tokens`).

    Args:
        draft_token_ids: [num_tokens].
        draft_probs, target_probs, inv_q: [num_tokens, V]. The share need not sum to 1: it is multiplied by
            noise, and the largest product wins, as in `random_sample`.
    """
    if draft_probs is None:
        residual = target_probs.copy()
        residual[np.arange(len(draft_token_ids)), draft_token_ids] = 0
    else:
        residual = np.maximum(target_probs - draft_probs, 0)
    residual *= inv_q
    recovered: IntArray = residual.argmax(axis=-1)
    return recovered


# ---- the draws -----------------------------------------------------------------------------------


def generate_uniform_probs(
    num_draft_tokens: Sequence[int],
    generators: Mapping[int, np.random.Generator],
    rng: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) a draft, [num_tokens]; a request with a seed takes its own
    (`vllm/v1/sample/rejection_sampler.py:604 generate_uniform_probs`).

    In float64: in float32 an exact 0 is not rare, and it accepts a token of probability 0.
    """
    uniform_probs = rng.random(sum(num_draft_tokens))
    start = 0
    for i, n in enumerate(num_draft_tokens):
        if n and i in generators:
            uniform_probs[start : start + n] = generators[i].random(n)
        start += n
    return uniform_probs


def generate_inv_q(
    num_draft_tokens: Sequence[int],
    vocab_size: int,
    generators: Mapping[int, np.random.Generator],
    rng: np.random.Generator,
) -> FloatArray:
    """One over exponential noise, [n, V] float32: one vector a request, which all its drafts share, since
    at most one of them is replaced (`vllm/v1/sample/rejection_sampler.py:659 sample_recovered_tokens`)."""
    noise = rng.standard_exponential((len(num_draft_tokens), vocab_size))
    for i, generator in generators.items():
        if num_draft_tokens[i]:
            generator.standard_exponential(out=noise[i])
    np.maximum(noise, np.finfo(np.float32).tiny, out=noise)  # numpy can draw an exact 0
    inv_q: FloatArray = np.reciprocal(noise).astype(np.float32)
    return inv_q
