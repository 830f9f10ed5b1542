"""For the tests of the sampler: rows, logits, and every step done slowly for one row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mini_vllm.sample.metadata import SamplingMetadata, make_generator
from mini_vllm.sample.sampler import Sampler, SamplerOutput
from mini_vllm.sampling_params import SamplingParams

VOCAB = 24
INF = math.inf
# The chi-square statistic exceeds these in one run of a thousand, by degrees of freedom.
CHI_SQUARE_0_001 = {2: 13.816, 3: 16.266, 4: 18.467, 7: 24.322}


@dataclass
class Row:
    """A request that samples."""

    sampling_params: SamplingParams
    prompt_token_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    output_token_ids: list[int] = field(default_factory=list)
    generator: np.random.Generator | None = None

    def __post_init__(self) -> None:
        self.generator = make_generator(self.sampling_params)


def rows_of(*params: SamplingParams) -> list[Row]:
    return [Row(p) for p in params]


def random_logits(seed: int, n: int, vocab: int = VOCAB, scale: float = 3.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, vocab)) * scale).astype(np.float32)


# ---- slow and obvious: one row, Python floats ----------------------------------------------------


def slow_softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / sum(weights) for w in weights]


def slow_top_k(logits: list[float], k: int) -> list[float]:
    kth = sorted(logits, reverse=True)[min(k, len(logits)) - 1]
    return [x if x >= kth else -INF for x in logits]


def slow_top_p(logits: list[float], p: float) -> list[float]:
    probs = slow_softmax(logits)
    allowed = list(logits)
    mass = 0.0
    order = sorted(range(len(logits)), key=lambda t: logits[t])
    for token in order[:-1]:  # the likeliest always stays
        mass += probs[token]
        # In float32 as at the pin: 1 - 0.9 is 0.1 there, and not a little less.
        if np.float32(mass) <= np.float32(1) - np.float32(p):
            allowed[token] = -INF
    return allowed


def slow_min_p(logits: list[float], min_p: float) -> list[float]:
    probs = slow_softmax(logits)
    floor = min_p * max(probs)
    return [x if q >= floor else -INF for x, q in zip(logits, probs, strict=True)]


def slow_penalties(logits: list[float], row: Row) -> list[float]:
    p, out = row.sampling_params, []
    for token, logit in enumerate(logits):
        count = row.output_token_ids.count(token)
        if count or token in row.prompt_token_ids:
            positive = logit > 0
            logit = logit / p.repetition_penalty if positive else logit * p.repetition_penalty
        if count:
            logit -= p.frequency_penalty * count + p.presence_penalty
        out.append(logit)
    return out


def slow_processors(logits: list[float], row: Row) -> list[float]:
    """What can change the argmax, in vLLM's order."""
    p = row.sampling_params
    if p.allowed_token_ids:
        logits = [x if t in p.allowed_token_ids else -INF for t, x in enumerate(logits)]
    if len(row.output_token_ids) < p.min_tokens:
        logits = [-INF if t in p.all_stop_token_ids else x for t, x in enumerate(logits)]
    logits = [x + (p.logit_bias or {}).get(t, 0.0) for t, x in enumerate(logits)]
    return slow_penalties(logits, row)


def slow_allowed(logits: list[float], row: Row) -> list[float]:
    """The distribution a row's token is drawn from."""
    p = row.sampling_params
    logits = [x / p.temperature for x in slow_processors(logits, row)]
    logits = slow_min_p(logits, p.min_p)
    logits = slow_top_k(logits, p.top_k) if p.top_k > 0 else logits
    return slow_softmax(slow_top_p(logits, p.top_p))


def random_params(rng: np.random.Generator, greedy: bool | None = None) -> SamplingParams:
    def sometimes(value: Any, default: Any) -> Any:
        return value if rng.random() < 0.4 else default

    def ids(n: int) -> list[int]:
        return rng.choice(VOCAB, n, replace=False).tolist()

    params = SamplingParams(
        temperature=0.0
        if (rng.random() < 0.5 if greedy is None else greedy)
        else rng.uniform(0.1, 2),
        top_k=sometimes(int(rng.integers(1, VOCAB + 9)), 0),
        top_p=sometimes(rng.uniform(0.1, 1), 1.0),
        min_p=sometimes(rng.uniform(0, 0.5), 0.0),
        seed=sometimes(int(rng.integers(1000)), None),
        presence_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        frequency_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        repetition_penalty=sometimes(rng.uniform(0.5, 2), 1.0),
        logit_bias=sometimes({t: rng.uniform(-9, 9) for t in ids(3)}, None),
        allowed_token_ids=sometimes(ids(12), None),
        stop_token_ids=sometimes(ids(2), None),
        min_tokens=sometimes(int(rng.integers(1, 6)), 0),
        logprobs=sometimes(int(rng.integers(0, 6)), None),
    )
    params.update_from_generation_config({"eos_token_id": [2, 3, 999]}, 2)
    return params


def generations(
    seed: int, greedy: bool | None = None, n: int = 24, steps: int = 8
) -> Iterator[tuple[list[Row], np.ndarray, SamplingMetadata, SamplerOutput]]:
    """Steps of a random batch with one metadata object throughout, before the tokens are added."""
    rng = np.random.default_rng(seed)
    rows = rows_of(*(random_params(rng, greedy) for _ in range(n)))
    for row in rows:
        row.prompt_token_ids = rng.integers(0, VOCAB, 5).tolist()
        row.output_token_ids.extend(rng.integers(0, VOCAB, int(rng.integers(0, 4))).tolist())
    metadata, sampler = SamplingMetadata.build(rows, VOCAB), Sampler(seed)
    for step in range(steps):
        logits = random_logits(seed * 100 + step, n)
        out = sampler(logits, metadata)
        yield rows, logits, metadata, out
        for row, token in zip(rows, out.sampled_token_ids.tolist(), strict=True):
            # Now and then a row's token is dropped, or it gets two.
            row.output_token_ids.extend([token] * int(rng.choice(3, p=[0.1, 0.8, 0.1])))
