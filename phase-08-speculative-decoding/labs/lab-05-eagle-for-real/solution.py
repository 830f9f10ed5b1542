"""Lab 08-05: what an EAGLE head brings, predicted, and read from vLLM's counters. Solution."""

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
        steps: of the engine that computed anything; the prefills share one.
        counters: over all requests.
    """

    steps: int
    counters: Counters


def predictions() -> dict[str, float]:
    """Your answers to the questions of the README, under its names."""
    return {
        "texts that change": 0,
        "accepted at position 1, percent": 76,
        "accepted at position 3, percent": 56,
        "tokens per draft, k = 3": 3,
        "fewer steps, k = 3, times": 2.4,
        "draft tokens per draft, k = 3": 3,
        "accepted past the end of a text": 56,
    }


# ---- from acceptance to counters -----------------------------------------------------------------


def serve_one(right: Sequence[int], num_tokens: int, k: int) -> Counters:
    """The counters of one request that generates `num_tokens`, with k speculative tokens.

    The prefill gives the first token. From then on every step verifies k guesses.

    Args:
        right: `right[i]` is how many guesses in a row would be right, if the head guessed when i + 1 tokens
            of the text are known. It may be more than k, and may reach past the end of the text:
            vLLM counts what it accepts before it checks whether the request is finished.
    """
    per_position = [0] * k
    drafts, known = 0, 1
    while known < num_tokens:
        accepted = min(right[known - 1], k)
        for position in range(accepted):
            per_position[position] += 1
        drafts += 1
        known += accepted + 1
    return Counters(drafts, k * drafts, sum(per_position), tuple(per_position))


def serve(requests: Sequence[tuple[Sequence[int], int]], k: int) -> Run:
    """All requests at once: each is a pair of `right` and `num_tokens`, as for `serve_one`.

    No request waits: all prefills are in the first step, and every unfinished request is in every step.
    """
    each = [serve_one(right, num_tokens, k) for right, num_tokens in requests]
    total = Counters(
        sum(one.drafts for one in each),
        sum(one.draft_tokens for one in each),
        sum(one.accepted for one in each),
        tuple(sum(column) for column in zip(*(one.per_position for one in each), strict=True)),
    )
    return Run(1 + max(one.drafts for one in each), total)


# ---- from counters to numbers --------------------------------------------------------------------


def acceptance_rates(counters: Counters) -> list[float]:
    """For each position, the share of drafts in which it and all before it were accepted."""
    return [accepted / counters.drafts for accepted in counters.per_position]


def mean_acceptance_length(counters: Counters) -> float:
    """vLLM's figure of that name: the tokens that a draft yields, the target's own included."""
    return 1 + counters.accepted / counters.drafts


def draft_acceptance_rate(counters: Counters) -> float:
    """The share of guessed and verified tokens that was accepted."""
    return counters.accepted / counters.draft_tokens


def thrown_away(counters: Counters, num_requests: int, num_tokens: int) -> int:
    """Tokens that were accepted or sampled past the end of a text, and dropped.

    Args:
        num_tokens: in all texts together.
    """
    return num_requests + counters.drafts + counters.accepted - num_tokens


# ---- from acceptance alone -----------------------------------------------------------------------


def expected_drafts(rates: Sequence[float], num_requests: int, num_tokens: int) -> float:
    """How many drafts to expect with as many speculative tokens as there are rates.

    Only the rates are known: `acceptance_rates` of some other run. Ends of texts are left out.
    """
    return (num_tokens - num_requests) / (1 + sum(rates))


def fewest_guesses(rates: Sequence[float], wanted: float) -> int | None:
    """The smallest k that brings `wanted` tokens per draft; None if no k up to `len(rates)` does."""
    for k in range(len(rates) + 1):
        if 1 + sum(rates[:k]) >= wanted:
            return k
    return None


def synthetic_accepted(rates: Sequence[float], uniforms: Sequence[float]) -> int:
    """How many guesses `rejection_sample_method="synthetic"` accepts, whatever they are.

    vLLM walks along the draft and stops at the first rejection. At each position it draws a number from
    [0, 1) and accepts if that is below a chance. The chances are such that over many drafts
    `acceptance_rates` would give `rates`.

    Args:
        rates: by position, never rising.
        uniforms: what it draws, one for each position.
    """
    before = 1.0
    for position, (rate, uniform) in enumerate(zip(rates, uniforms, strict=True)):
        if not uniform * before < rate:
            return position
        before = rate
    return len(rates)
