"""From logits to tokens: one row of logits per request, one token id per row.

Mirrors `vllm/v1/sample/`: `sampler.py` (the order of the steps), `metadata.py` (what the batch asks
for) and the state that `logits_processor/builtin.py` keeps. The steps themselves are in
`ops.py`. Their order decides results, so it is upstream's:

1. logprobs, from the raw logits (or from what the later steps leave, as `logprobs_mode` says);
2. what can change the argmax: allowed token ids, bad words, `min_tokens`, `logit_bias`, others' logits
   processors, penalties;
3. the argmax, for greedy rows;
4. what cannot change it: temperature, `min_p`, others' processors of this kind, `top_k` and `top_p`; then
   the draw.

Rows with speculative tokens go through `rejection_sampler.py` first.
Left out: thinking budgets. Token ids come as int64 [n] instead of int32 [n, 1].

Shapes below: n rows, V tokens in the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mini_vllm.sample.generator import TorchGenerator
from mini_vllm.sample.metadata import SamplingMetadata
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
    gather_specific_token_logprobs,
    mask_logits,
    random_sample,
    softmax,
)
from mini_vllm.sampling_params import SAMPLING_EPS


@dataclass(slots=True)
class SamplerOutput:
    """One sampled token per row, or with drafts as many as are kept (`vllm/v1/outputs.py`)."""

    sampled_token_ids: IntArray
    """[n]; from the rejection sampler [n, most drafts + 1]."""
    logprobs: LogprobsLists | None = None
    """None where no row asked for any."""
    specific_logprobs: LogprobsLists | None = None
    """Those of `logprob_token_ids`, for the rows that have them. Upstream they take the place of all
    rows' others."""


class Sampler:
    """Chooses the next token of each row (`vllm/v1/sample/sampler.py:20 Sampler`).

    Args:
        seed: of the random stream that all rows without a seed of their own share.
        logprobs_mode: what `logprobs` are (`vllm/config/model.py:239 ModelConfig.logprobs_mode`):
            `raw_logprobs` and `raw_logits` before all steps, `processed_logprobs` and
            `processed_logits` after them: what the token is drawn from. In a batch of greedy rows alone
            that is before the temperature.
    """

    def __init__(self, seed: int = 0, logprobs_mode: str = "raw_logprobs") -> None:
        self.rng = TorchGenerator(seed)
        self.logprobs_mode = logprobs_mode

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
        raw = logits
        logits = self.apply_logits_processors(logits, sampling_metadata)
        sampled, processed = self.sample(logits, sampling_metadata)
        if sampling_metadata.max_num_logprobs is None and not sampling_metadata.logprob_token_ids:
            return SamplerOutput(sampled)
        reported = raw if self.logprobs_mode.startswith("raw") else processed
        if self.logprobs_mode.endswith("logprobs"):
            reported = compute_logprobs(reported)
        output = SamplerOutput(sampled)
        if sampling_metadata.max_num_logprobs is not None:
            num_logprobs = sampling_metadata.max_num_logprobs
            output.logprobs = gather_logprobs(reported, num_logprobs, sampled)
        if sampling_metadata.logprob_token_ids:
            wanted = sampling_metadata.logprob_token_ids
            output.specific_logprobs = gather_specific_token_logprobs(reported, wanted, sampled)
        return output

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
        if metadata.logitsprocs is not None:
            for processor in metadata.logitsprocs.non_argmax_invariant:
                logits = processor.apply(logits.copy())
        if metadata.penalties is not None:
            metadata.penalties.update_state()
            logits = metadata.penalties.apply(logits)
        return logits

    def sample(
        self, logits: FloatArray, sampling_metadata: SamplingMetadata
    ) -> tuple[IntArray, FloatArray]:
        """[n, V] logits to [n] token ids, and the logits that they were drawn from
        (`vllm/v1/sample/sampler.py:238 Sampler.sample`)."""
        metadata = sampling_metadata
        greedy: IntArray | None = None if metadata.all_random else logits.argmax(axis=-1)
        if metadata.temperature is None and greedy is not None:
            return greedy, logits
        assert metadata.temperature is not None
        logits = apply_temperature(logits, metadata.temperature, metadata.all_random)
        if metadata.min_p is not None:
            logits = apply_min_p(logits, metadata.min_p)
        if metadata.logitsprocs is not None:
            for processor in metadata.logitsprocs.argmax_invariant:
                logits = processor.apply(logits.copy())
        logits = apply_top_k_top_p(logits, metadata.top_k, metadata.top_p)
        drawn = random_sample(softmax(logits), metadata.generators, self.rng)
        if greedy is None:
            return drawn, logits
        return np.where(metadata.temperature < SAMPLING_EPS, greedy, drawn), logits
