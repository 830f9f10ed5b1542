"""Lab 09-01: what each stage of the sampler does to a row of logits, and in which order they run. A solution.

V tokens in the vocabulary; a row of logits is float32 [V]. A masked token has the logit -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mini_vllm.sample.ops import softmax

Array = NDArray[np.float32]
Ints = NDArray[np.int64]

SAMPLING_EPS = 1e-5
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
    return {
        "min_p and top_p": [0, 1, 2],
        "top_k and top_p": [0, 1],
        "a hot request": [0, 1, 2, 3, 4],
        "a barred favourite": [1, 2],
        "a penalty in the heat": [0, 1, 2],
        "greedy": [2],
    }


# ---- the stages ----------------------------------------------------------------------------------


def allowed_ids(logits: Array, request: Request) -> Array:
    """Bar all tokens but the allowed ones."""
    if request.allowed_token_ids is None:
        return logits
    kept = np.full_like(logits, NEG_INF)
    allowed = list(request.allowed_token_ids)
    kept[allowed] = logits[allowed]
    return kept


def bad_words(logits: Array, request: Request) -> Array:
    """Mask the token that would complete a bad word."""
    kept = logits.copy()
    output = list(request.output)
    for *begun, last in request.bad_words:
        if output[len(output) - len(begun) :] == begun:
            kept[last] = NEG_INF
    return kept


def logit_bias(logits: Array, request: Request) -> Array:
    """Add each token's bias to its logit."""
    biased = logits.copy()
    for token, bias in request.logit_bias.items():
        biased[token] += bias
    return biased


def penalties(logits: Array, request: Request) -> Array:
    """Make tokens that were there before less likely: repetition, frequency, presence."""
    seen = sorted({*request.prompt, *request.output})
    counts = np.bincount(np.array(request.output, np.int64), minlength=len(logits))
    penalised = logits.copy()
    old, factor = logits[seen], np.float32(request.repetition_penalty)
    penalised[seen] = np.where(old > 0, old / factor, old * factor)
    penalised -= np.float32(request.frequency_penalty) * counts.astype(np.float32)
    penalised -= np.float32(request.presence_penalty) * (counts > 0)
    return penalised


def temperature(logits: Array, request: Request) -> Array:
    """Divide by the temperature."""
    return logits / np.float32(request.temperature)


def min_p(logits: Array, request: Request) -> Array:
    """Bar the tokens below `min_p` times the likeliest one's probability."""
    probs = softmax(logits)
    return np.where(probs < np.float32(request.min_p) * probs.max(), NEG_INF, logits)


def top_k(logits: Array, request: Request) -> Array:
    """Bar the tokens below the k-th largest logit."""
    if not 0 < request.top_k < len(logits):
        return logits
    kth = np.sort(logits)[-request.top_k]
    return np.where(logits < kth, NEG_INF, logits)


def top_p(logits: Array, request: Request) -> Array:
    """Keep the likeliest tokens that together hold p."""
    ascending = np.argsort(logits, kind="stable")
    mass = np.cumsum(softmax(logits)[ascending])
    out = mass <= np.float32(1) - np.float32(request.top_p)
    out[-1] = False
    kept = logits.copy()
    kept[ascending[out]] = NEG_INF
    return kept


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


# ---- the decision --------------------------------------------------------------------------------


def order() -> list[str]:
    """The eight stages and "argmax", in the order in which they run."""
    return [
        "allowed ids",
        "bad words",
        "logit bias",
        "penalties",
        "argmax",
        "temperature",
        "min_p",
        "top_k",
        "top_p",
    ]


def process(logits: Array, request: Request) -> Array:
    """What the request's token is chosen from."""
    for name in order():
        if name != "argmax":
            logits = STAGES[name](logits, request)
        elif request.temperature < SAMPLING_EPS:
            break
    return logits


def sample(logits: Array, requests: Sequence[Request], noise: Array) -> Ints:
    """One token per row of a batch."""
    tokens = []
    for row, request, row_noise in zip(logits, requests, noise, strict=True):
        left = process(row, request)
        greedy = request.temperature < SAMPLING_EPS
        tokens.append((left if greedy else softmax(left) / row_noise).argmax())
    return np.array(tokens, np.int64)
