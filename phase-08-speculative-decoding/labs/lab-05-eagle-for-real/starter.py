"""Lab 08-05: what an EAGLE head brings, predicted, and read from vLLM's counters. Your turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Counters(NamedTuple):
    """Given: vLLM's counters of speculative decoding, added up over a run.

    Attributes:
        drafts: `num_drafts`, one for each request and step in which drafts were verified.
        draft_tokens: `num_draft_tokens`, the tokens that were verified.
        accepted: `num_accepted_tokens` of them.
        per_position: `num_accepted_tokens_per_pos`: in how many drafts the first token was accepted, the
            first two, and so on.
    """

    drafts: int
    draft_tokens: int
    accepted: int
    per_position: tuple[int, ...]


class Run(NamedTuple):
    """Given: requests that were served together.

    Attributes:
        steps: engine steps in which anything was computed. All prefills are in the first.
        counters: over all requests.
    """

    steps: int
    counters: Counters


def predictions() -> dict[str, float]:
    """Your answers to the questions of the README, under its names."""
    raise NotImplementedError


# ---- from acceptance to counters -----------------------------------------------------------------


def serve_one(right: Sequence[int], num_tokens: int, k: int) -> Counters:
    """The counters of one request that generates `num_tokens`, with k speculative tokens.

    The prefill gives the first token. From then on every step verifies k guesses.

    Args:
        right: `right[i]` is how many guesses in a row would be right, if the head guessed when i + 1 tokens
            of the text are known. It may be more than k, and may reach past the end of the text:
            vLLM counts what it accepts before it checks whether the request is finished.
    """
    raise NotImplementedError


def serve(requests: Sequence[tuple[Sequence[int], int]], k: int) -> Run:
    """All requests at once: each is a pair of `right` and `num_tokens`, as for `serve_one`.

    No request waits: all prefills are in the first step, and every unfinished request is in every step.
    """
    raise NotImplementedError


# ---- from counters to numbers --------------------------------------------------------------------


def acceptance_rates(counters: Counters) -> list[float]:
    """For each position, the share of drafts in which it and all before it were accepted."""
    raise NotImplementedError


def mean_acceptance_length(counters: Counters) -> float:
    """vLLM's figure of that name: the tokens that a draft yields, the target's own included."""
    raise NotImplementedError


def draft_acceptance_rate(counters: Counters) -> float:
    """The share of guessed and verified tokens that was accepted."""
    raise NotImplementedError


def thrown_away(counters: Counters, num_requests: int, num_tokens: int) -> int:
    """Tokens that were accepted or sampled past the end of a text, and dropped.

    Args:
        num_requests: each has its first token from its prefill.
        num_tokens: in all texts together.
    """
    raise NotImplementedError


# ---- from acceptance alone -----------------------------------------------------------------------


def expected_drafts(rates: Sequence[float], num_requests: int, num_tokens: int) -> float:
    """How many drafts to expect with as many speculative tokens as there are rates.

    Only the rates are known: `acceptance_rates` of some other run. Each text has its first token from its
    prefill. Ignore that a last draft may reach past the end of its text.
    """
    raise NotImplementedError


def fewest_guesses(rates: Sequence[float], wanted: float) -> int | None:
    """The smallest k that yields `wanted` tokens per draft, from 0 on, where the target's own token is alone.
    None if no k up to `len(rates)` does."""
    raise NotImplementedError


def synthetic_accepted(rates: Sequence[float], uniforms: Sequence[float]) -> int:
    """How many guesses `rejection_sample_method="synthetic"` accepts, whatever they are.

    vLLM walks along the draft and stops at the first rejection. At each position it draws a number from
    [0, 1) and accepts if that is below a chance. The chances are such that over many drafts
    `acceptance_rates` would give `rates`.

    Args:
        rates: by position, never rising; 0 from some position on is possible.
        uniforms: what it draws, one for each position.
    """
    raise NotImplementedError
