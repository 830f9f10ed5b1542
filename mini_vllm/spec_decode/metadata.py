"""Which rows of a step's logits judge a draft, and which give a token of their own.

Mirrors `vllm/v1/spec_decode/metadata.py:10 SpecDecodeMetadata` and the function that fills it,
`vllm/v1/worker/gpu_model_runner.py:2713 GPUModelRunner._calc_spec_decode_metadata`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class SpecDecodeMetadata:
    """The drafts of a step: n requests with `num_tokens` drafts between them.

    A request with k drafts has k + 1 rows of logits, next to one another: the first k judge its drafts,
    the last is the bonus row. So there are `num_tokens + n` rows of logits.
    """

    draft_token_ids: IntArray
    """[num_tokens], the requests' drafts end to end."""
    num_draft_tokens: list[int]
    """[n], 0 for a request that has none."""
    cu_num_draft_tokens: IntArray
    """[n], drafts up to and including each request."""
    cu_num_sampled_tokens: IntArray
    """[n], rows of logits up to and including each request."""
    target_logits_indices: IntArray
    """[num_tokens], the row of logits that judges each draft."""
    bonus_logits_indices: IntArray
    """[n], each request's last row of logits."""
    logits_indices: IntArray
    """[num_tokens + n], the step's token after which each row of logits stands."""

    @property
    def max_spec_len(self) -> int:
        """The most drafts that a request has."""
        return max(self.num_draft_tokens, default=0)

    @classmethod
    def build(
        cls,
        num_draft_tokens: npt.NDArray[np.integer],
        cu_num_scheduled_tokens: npt.NDArray[np.integer],
        input_ids: npt.NDArray[np.integer],
    ) -> SpecDecodeMetadata:
        """From the step's tokens, which end, for each request, with its last token and its drafts.

        Args:
            num_draft_tokens: [n].
            cu_num_scheduled_tokens: [n], one past each request's last token of the step.
            input_ids: the step's tokens, all requests end to end.
        """
        num_drafts = num_draft_tokens.astype(np.int64)
        num_sampled_tokens = num_drafts + 1
        cu_num_sampled_tokens = np.cumsum(num_sampled_tokens)
        cu_num_draft_tokens = np.cumsum(num_drafts)
        logits_indices = _ranges(cu_num_scheduled_tokens - num_sampled_tokens, num_sampled_tokens)
        target_logits_indices = _ranges(cu_num_sampled_tokens - num_sampled_tokens, num_drafts)
        return cls(
            # The logits after a token judge the token that follows it.
            draft_token_ids=input_ids[logits_indices[target_logits_indices + 1]].astype(np.int64),
            num_draft_tokens=num_drafts.tolist(),
            cu_num_draft_tokens=cu_num_draft_tokens,
            cu_num_sampled_tokens=cu_num_sampled_tokens,
            target_logits_indices=target_logits_indices,
            bonus_logits_indices=cu_num_sampled_tokens - 1,
            logits_indices=logits_indices,
        )


def _ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """`starts[i], starts[i] + 1, ...`, `lengths[i]` numbers of each, end to end."""
    before = np.cumsum(lengths) - lengths
    ranges: IntArray = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
    return ranges
