"""From logits to tokens: one row of logits per request, one token id per row.

Mirrors `vllm/v1/sample/`: `sampler.py` (the order of the steps), `metadata.py` (what the batch asks
for) and the state that `logits_processor/builtin.py` keeps. The steps themselves are in
`ops.py`. Their order decides results, so it is upstream's:

1. logprobs, from the raw logits;
2. what can change the argmax: allowed token ids, bad words, `min_tokens`, `logit_bias`, penalties;
3. the argmax, for greedy rows;
4. what cannot change it: temperature, `min_p`, `top_k` and `top_p`; then the draw.

Rows with speculative tokens go through `rejection_sampler.py` first.
Left out: thinking budgets, custom logits processors, the other
`logprobs_mode`s, `logprob_token_ids`. Two differences: token ids come as int64 [n] instead of
int32 [n, 1], and the random stream is numpy's, so seeded draws repeat here but are not vLLM's.

Shapes below: n rows, V tokens in the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mini_vllm.sample.metadata import (
    SamplingMetadata,
)
from mini_vllm.sample.ops import (
    FloatArray,
    IntArray,
    LogprobsLists,
    apply_logit_bias,
    apply_min_p,
    apply_min_tokens,
    apply_temperature,
    apply_top_k_top_p,
    compute_logprobs,
    gather_logprobs,
    mask_logits,
    random_sample,
    softmax,
)
from mini_vllm.sampling_params import _SAMPLING_EPS


@dataclass(slots=True)
class SamplerOutput:
    """One sampled token per row, or with drafts as many as are kept (`vllm/v1/outputs.py`)."""

    sampled_token_ids: IntArray
    """[n]; from the rejection sampler [n, most drafts + 1]."""
    logprobs: LogprobsLists | None = None
    """None where no row asked for any."""


class Sampler:
    """Chooses the next token of each row (`vllm/v1/sample/sampler.py:20 Sampler`).

    Args:
        seed: of the random stream that all rows without a seed of their own share.
    """

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, logits: FloatArray, sampling_metadata: SamplingMetadata) -> SamplerOutput:
        """Sample one token per row of the [n, V] logits, which stay as they are.

        Raises:
            ValueError: logits of another shape than the metadata was built for.
        """
        if logits.shape != sampling_metadata.shape:
            raise ValueError(
                f"logits must have the shape {sampling_metadata.shape} of their metadata, "
                f"got {logits.shape}."
            )
        logits = logits.astype(np.float32, copy=False)
        num_logprobs = sampling_metadata.max_num_logprobs
        # Raw: before penalties and temperature. What is reported is the model's own opinion.
        logprobs = None if num_logprobs is None else compute_logprobs(logits)
        logits = self.apply_logits_processors(logits, sampling_metadata)
        sampled = self.sample(logits, sampling_metadata)
        if num_logprobs is None or logprobs is None:
            return SamplerOutput(sampled)
        return SamplerOutput(sampled, gather_logprobs(logprobs, num_logprobs, sampled))

    @staticmethod
    def apply_logits_processors(
        logits: FloatArray, sampling_metadata: SamplingMetadata
    ) -> FloatArray:
        """The steps that can change the argmax, on [n, V]
        (`vllm/v1/sample/sampler.py:366 Sampler.apply_logits_processors`)."""
        metadata = sampling_metadata
        if metadata.allowed_token_ids_mask is not None:
            logits = mask_logits(logits, metadata.allowed_token_ids_mask)
        if metadata.bad_words is not None:
            logits = metadata.bad_words.apply(logits)
        if metadata.min_tokens is not None:
            metadata.min_tokens.update_state()
            logits = apply_min_tokens(logits, *metadata.min_tokens.logits_slice)
        if metadata.logit_bias is not None:
            logits = apply_logit_bias(logits, *metadata.logit_bias)
        if metadata.penalties is not None:
            metadata.penalties.update_state()
            logits = metadata.penalties.apply(logits)
        return logits

    def sample(self, logits: FloatArray, sampling_metadata: SamplingMetadata) -> IntArray:
        """[n, V] logits to [n] token ids (`vllm/v1/sample/sampler.py:238 Sampler.sample`)."""
        metadata = sampling_metadata
        greedy: IntArray | None = None if metadata.all_random else logits.argmax(axis=-1)
        if metadata.temperature is None and greedy is not None:
            return greedy
        assert metadata.temperature is not None
        logits = apply_temperature(logits, metadata.temperature, metadata.all_random)
        if metadata.min_p is not None:
            logits = apply_min_p(logits, metadata.min_p)
        logits = apply_top_k_top_p(logits, metadata.top_k, metadata.top_p)
        drawn = random_sample(softmax(logits), metadata.generators, self.rng)
        if greedy is None:
            return drawn
        return np.where(metadata.temperature < _SAMPLING_EPS, greedy, drawn)
