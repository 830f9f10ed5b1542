"""Lab 09-01: what each stage of the sampler does to a row of logits, and in which order they run. Your work:
every NotImplementedError.

V tokens in the vocabulary; a row of logits is float32 [V]. A masked token has the logit -inf. No function
changes the row that it is given; it may return it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mini_vllm.sample.ops import softmax  # noqa: F401  # given: takes [V] as well as [n, V]

Array = NDArray[np.float32]
Ints = NDArray[np.int64]

SAMPLING_EPS = 1e-5
"""A request with a temperature below this is greedy."""
NEG_INF = np.float32(-np.inf)


@dataclass(frozen=True)
class Request:
    """Given: what a request asks of the sampler, and the tokens that it has."""

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[Sequence[int]] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)


def predictions() -> dict[str, list[int]]:
    """Your answers to the README's six questions, under the names given there."""
    raise NotImplementedError


# ---- the stages ----------------------------------------------------------------------------------


def allowed_ids(logits: Array, request: Request) -> Array:
    """Mask all tokens except `request.allowed_token_ids`. None: all are allowed."""
    raise NotImplementedError


def bad_words(logits: Array, request: Request) -> Array:
    """Mask the token that would complete a bad word.

    A bad word is a list of at least one token. Its last token is masked where the output ends with the
    others, in their order; a word of one token is always masked. The prompt does not count.
    """
    raise NotImplementedError


def logit_bias(logits: Array, request: Request) -> Array:
    """Add each token's bias to its logit."""
    raise NotImplementedError


def penalties(logits: Array, request: Request) -> Array:
    """Make tokens that occurred before less likely, by three penalties in this order.

    Repetition: for each token of the prompt or the output a positive logit is divided by the penalty, any
    other multiplied. Frequency: subtracted once per occurrence in the output. Presence: subtracted once from
    each token that occurs in the output.
    """
    raise NotImplementedError


def temperature(logits: Array, request: Request) -> Array:
    """Divide by the temperature, which is not 0 here."""
    raise NotImplementedError


def min_p(logits: Array, request: Request) -> Array:
    """Mask the tokens less likely than `min_p` times the likeliest one. A token exactly there stays."""
    raise NotImplementedError


def top_k(logits: Array, request: Request) -> Array:
    """Mask the tokens whose logit is below the k-th largest. Tokens that tie with it stay.

    0, and V or more, mask nothing.
    """
    raise NotImplementedError


def top_p(logits: Array, request: Request) -> Array:
    """Mask the least likely tokens, so that the others hold at least p between them.

    From the least likely up, a token is masked while the sum so far, its own probability included, is at most
    1 - p. The likeliest always stays. Unlike in `top_k` a tie saves no token; which of the
    tied tokens are masked is up to you.
    """
    raise NotImplementedError


STAGES: dict[str, Callable[[Array, Request], Array]] = {
    "allowed ids": allowed_ids,
    "bad words": bad_words,
    "logit bias": logit_bias,
    "min_p": min_p,
    "penalties": penalties,
    "temperature": temperature,
    "top_k": top_k,
    "top_p": top_p,
}
"""Given, in alphabetical order."""


# ---- the decision --------------------------------------------------------------------------------


def order() -> list[str]:
    """The names of the eight stages, and "argmax", in the order in which they run.

    "argmax" is where a greedy request's token is chosen: nothing after it applies to greedy requests.
    """
    raise NotImplementedError


def process(logits: Array, request: Request) -> Array:
    """The logits [V] that the request's token is chosen from, after all its stages, in your order."""
    raise NotImplementedError


def sample(logits: Array, requests: Sequence[Request], noise: Array) -> Ints:
    """One token per row of a batch that may mix greedy requests and others.

    A greedy request gets the token with the largest logit, any other the one with the largest probability
    divided by noise. Among equals, the first.

    Args:
        logits: [n, V].
        requests: n of them.
        noise: [n, V], drawn from the exponential distribution. vLLM draws it for greedy rows too, and throws
            it away.

    Returns:
        int64 [n].
    """
    raise NotImplementedError
