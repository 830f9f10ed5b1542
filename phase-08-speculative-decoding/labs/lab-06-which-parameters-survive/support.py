"""Given: what vLLM is asked about, chi-square's own numbers, and black boxes that write two tokens."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ANSWERS = Path(__file__).resolve().parent / "answers.json"

SETTINGS: dict[str, dict[str, Any]] = {
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 20},
    "min_p": {"min_p": 0.1},
    "min_p of 0.000001": {"min_p": 1e-6},
    "seed": {"seed": 7},
    "presence_penalty": {"presence_penalty": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "bad_words": {"bad_words": ["no"]},
    "allowed_token_ids": {"allowed_token_ids": [1, 2, 3]},
    "min_tokens": {"min_tokens": 4},
    "logit_bias": {"logit_bias": {5: 1.0}},
    "logit_bias of nothing": {"logit_bias": {}},
    "logprobs": {"logprobs": 5},
    "logits_processors": {},  # classes of one's own, given when the server starts
}
METHODS = ("ngram", "ngram_gpu", "suffix", "medusa", "draft_model", "eagle", "eagle3", "mtp")


def answers() -> dict[str, Any]:
    """What vLLM's validators say; see ask_vllm.py."""
    found: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return found


# ---- chi-square ----------------------------------------------------------------------------------


def chi_square_below(x: float, dof: float, noncentrality: float = 0.0) -> float:
    """The probability that chi-square is below x."""
    total, half, y = 0.0, noncentrality / 2, x / 2
    for j in range(300 if half else 1):
        weight = math.exp(j * math.log(half) - half - math.lgamma(j + 1)) if half else 1.0
        shape = dof / 2 + j
        term = weight * math.exp(shape * math.log(y) - y - math.lgamma(shape + 1))
        k = 0
        while term > 1e-14 or k < y - shape:
            total, k = total + term, k + 1
            term *= y / (shape + k)
    return total


def _bisect(rises: Callable[[float], float], target: float) -> float:
    low, high = 1e-9, 1000.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) < target else (low, middle)
    return high


@functools.cache
def critical(dof: int) -> float:
    """What chi-square exceeds by chance once in 1,000 times."""
    return _bisect(lambda x: chi_square_below(x, dof), 0.999)


@functools.cache
def needed(dof: int) -> float:
    """How large n * w2 must be for chi-square to exceed `critical(dof)` 99 times in 100.

    w2 is the sum of (wrong - right)^2 / right, where n draws come from `wrong` and are held against `right`.
    """
    return _bisect(lambda size: 1 - chi_square_below(critical(dof), dof, size), 0.99)


# ---- black boxes ---------------------------------------------------------------------------------


SHARE = 0.25
"""One machine in four has the fault."""


class Box:
    """A server that speculates, seen from outside: requests go in, their first two tokens come out.

    All requests have the same prompt. Each step has two drafts, judged as certain: `draft_first`, and
    `draft_second` of the token before. Behind a rejected draft a new step begins.

    Args:
        first: [V], the model's distribution of the first token.
        second: [V, V], that of the second, a row per first token.
        fault: None, "resampled" or "shared u".
        share: of the requests, those that come to a machine with the fault.
    """

    def __init__(
        self, first: Array, second: Array, draft_first: int, draft_second: Array, seed: int,
        fault: str | None = None, share: float = SHARE,
    ) -> None:  # fmt: skip
        self._model = first, second
        self._drafts = draft_first, draft_second
        self._fault, self._share = fault, share if fault else 0.0
        self._rng = np.random.RandomState(seed)
        self.drawn = 0

    def draw(self, n: int) -> Array:
        """The first two tokens of n more requests, int [n, 2]."""
        n = int(n)
        self.drawn += n
        assert self.drawn <= 100_000, (
            f"{self.drawn:,} requests to a server, and it is not judged yet"
        )
        (first, second), (draft_first, draft_second) = self._model, self._drafts
        faulty = self._rng.random_sample(n) < self._share
        u = self._rng.random_sample((n, 2))
        tokens = self._judge(np.tile(first, (n, 1)), np.full(n, draft_first), u[:, 0], faulty)
        if self._fault == "shared u":
            # Replaced by another token: then the second comes in a step of its own.
            same_step = faulty & (tokens == draft_first)
            u[same_step, 1] = u[same_step, 0]
        later = self._judge(second[tokens], draft_second[tokens], u[:, 1], faulty)
        return np.stack([tokens, later], axis=1)

    def _judge(self, p: Array, drafts: Array, u: Array, faulty: Array) -> Array:
        rows = np.arange(len(p))
        rejected = np.flatnonzero(p[rows, drafts] < u)
        left = p[rejected]
        if self._fault != "resampled":
            faulty = np.zeros_like(faulty)
        struck = np.flatnonzero(~faulty[rejected])
        left[struck, drafts[rejected][struck]] = 0
        tokens = drafts.copy()
        tokens[rejected] = (left / self._rng.standard_exponential(left.shape)).argmax(axis=-1)
        return tokens


def make_model(seed: int, vocab: int = 3) -> tuple[Array, Array, int, Array]:
    """A model of two tokens and its drafter: `first`, `second`, `draft_first`, `draft_second`."""
    rng = np.random.RandomState(seed)

    def row() -> Array:
        parts = rng.uniform(0.6, 2.0, vocab)
        found: Array = parts / parts.sum()
        return found

    first, second = row(), np.stack([row() for _ in range(vocab)])
    return first, second, int(rng.randint(vocab)), rng.randint(vocab, size=vocab)
