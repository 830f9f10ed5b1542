"""Lab 08-01: drafts from the request's own text, and what they save. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm import EngineConfig

Tokens = NDArray[np.int32]


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    raise NotImplementedError


def find_ngram(tokens: Sequence[int], min_n: int, max_n: int) -> int | None:
    """The place right after an earlier copy of the tokens that the text ends with; None without a copy.

    A copy is n tokens long, min_n <= n <= max_n, and begins before the last n tokens do, which it may
    overlap. Where there are several, vLLM takes the longest; of several that long, the earliest.

    Args:
        tokens: the prompt and all that was generated; perhaps none yet.
        min_n, max_n: at least 1.

    Returns: an index into tokens, of the token after the copy.
    """
    raise NotImplementedError


def draft(tokens: Sequence[int], min_n: int, max_n: int, k: int, max_model_len: int) -> list[int]:
    """At most k tokens that may come next: those from `find_ngram`'s place on.

    There are fewer if the text ends first, or if the request would get longer than max_model_len tokens.
    Without a place, or at max_model_len, there are none.
    """
    raise NotImplementedError


class NgramProposer:
    """What the engine asks after each step. The constructor is given."""

    def __init__(self, config: EngineConfig, model: object = None) -> None:
        spec = config.speculation
        if spec is None or spec.prompt_lookup_min is None or spec.prompt_lookup_max is None:
            raise ValueError(
                "this drafter looks up n-grams: speculative_config needs the method 'ngram'"
            )
        assert config.max_model_len is not None, "the engine sets it"
        self.min_n = spec.prompt_lookup_min
        self.max_n = spec.prompt_lookup_max
        self.k = spec.num_spec_tokens
        self.max_model_len = config.max_model_len

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Sequence[int] | NDArray[Any],
        token_ids_cpu: Sequence[Tokens] | Tokens,
    ) -> list[list[int]]:
        """Every request's drafts, in the order of the requests; an empty list for one that drafts nothing.

        A request that has sampled nothing in this step is still in the middle of its prompt, and drafts
        nothing.

        Args:
            sampled_token_ids: for each request, the tokens that this step has sampled for it.
            num_tokens_no_spec: for each, how many tokens it has, including the sampled ones.
            token_ids_cpu: for each, an int32 row that begins with those tokens. What follows them is
                left over from other requests.
        """
        raise NotImplementedError


@dataclass
class Counts:
    """What a request has cost, by vLLM's names.

    Attributes:
        num_steps: forward passes of the model.
        num_drafts: passes that had drafts to check.
        num_draft_tokens: tokens in those drafts.
        num_accepted_tokens: those of them that the model would have chosen.
        num_accepted_tokens_per_pos: k numbers, 0 where nothing was: in how many drafts the first, the second
            ... was accepted.
    """

    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)


def replay(
    text: Sequence[int], num_prompt_tokens: int, max_tokens: int, proposer: NgramProposer
) -> Counts:
    """The counts of a request with this proposer, worked out from the text that it got without drafts.

    The first pass computes the prompt, checks nothing and gives one token. Each later pass has the tokens
    known so far and the drafts for them. Draft tokens are accepted up to the first that is not the text's
    next token; then the pass adds one token of the model's own. The replay ends when there are at least
    max_tokens. You need not consider max_model_len here.

    Args:
        text: the prompt and what the model says after it at temperature 0, at least proposer.k tokens more
            than max_tokens: the last draft may reach beyond, and is counted in full.
    """
    raise NotImplementedError
