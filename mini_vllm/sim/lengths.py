"""How long prompts and answers are, and when requests come: numbers, a chunk at a time.

The arrivals are those of `vllm bench serve`. The lengths are not: its random dataset knows only
uniform ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mini_vllm.utils.untrusted import shorten_repr

CHUNK = 4096
"""Random numbers drawn at a time: a call of numpy's for each would cost more than the request."""
MOST_TOKENS = 10_000_000
"""No prompt is made that is longer: it is a list, and no model at the pin reads so much."""
SLOWEST = 1e-6
"""Requests a second: one in 11 days."""
LENGTH_FORMS = "N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA[:MOST]"


@dataclass(frozen=True)
class Lengths:
    """A distribution of a length in tokens.

    Attributes:
        kind: `constant` (first), `uniform` (from first to second, both included) or `lognormal`
            (median first, sigma of the logarithm second, cut off at most).
    """

    kind: str
    first: float
    second: float = 0.0
    most: int = MOST_TOKENS

    def draw(self, rng: np.random.Generator, n: int) -> list[int]:
        """`n` lengths, each at least 1."""
        if self.kind == "constant":
            return [int(self.first)] * n
        if self.kind == "uniform":
            return [int(x) for x in rng.integers(int(self.first), int(self.second) + 1, n)]
        # Above int64 there is nothing to round: the cut comes first.
        drawn = np.minimum(rng.lognormal(math.log(self.first), self.second, n), self.most)
        return [int(x) for x in np.maximum(np.rint(drawn), 1)]

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """From `LENGTH_FORMS`. Raises ValueError that names the text and the rule."""
        kind, *rest = text.split(":")
        wrong = ValueError(f"a length is {LENGTH_FORMS}, got {shorten_repr(text)}")
        try:
            if not rest:
                return cls("constant", _tokens(text, kind))
            if kind == "uniform" and len(rest) == 2:
                low, high = _tokens(text, rest[0]), _tokens(text, rest[1])
                if low > high:
                    raise ValueError(f"{shorten_repr(text)}: LOW must be at most HIGH")
                return cls(kind, low, high)
            if kind == "lognormal" and len(rest) in (2, 3):
                sigma = float(rest[1])
                if not 0 <= sigma <= 10:
                    raise ValueError(f"{shorten_repr(text)}: SIGMA must be from 0 to 10")
                most = _tokens(text, rest[2]) if len(rest) == 3 else MOST_TOKENS
                return cls(kind, _tokens(text, rest[0]), sigma, most)
        except ValueError as error:
            # int() and float() say nothing of the form.
            raise (error if "must be" in str(error) else wrong) from None
        raise wrong


def _tokens(text: str, number: str) -> int:
    value = int(number)
    if not 1 <= value <= MOST_TOKENS:
        raise ValueError(f"{shorten_repr(text)}: a length must be from 1 to {MOST_TOKENS} tokens")
    return value


def arrival_times(
    num_prompts: int, request_rate: float, burstiness: float = 1.0, seed: int = 0
) -> Iterator[float]:
    """Seconds from the start at which the requests come, as `vllm bench serve` sends them.

    The gaps are gamma distributed with mean `1 / request_rate`: `burstiness` 1 is a Poisson process,
    less comes in bursts, infinity is a metronome. An infinite rate sends everything at once. As at
    the pin, the times are then scaled so that the last comes at exactly `num_prompts / request_rate`.
    To know the factor without keeping the gaps, they are drawn twice.

    Raises ValueError for a rate below `SLOWEST`, or a burstiness that is not above 0.
    Source: `vllm/benchmarks/serve.py:247 get_request`.
    """
    if not request_rate >= SLOWEST:
        raise ValueError(
            f"request_rate must be at least {SLOWEST:g}, got {shorten_repr(request_rate)}"
        )
    if not burstiness > 0:
        raise ValueError(f"burstiness must be above 0, got {shorten_repr(burstiness)}")

    def gaps() -> Iterator[list[float]]:
        """In a unit of their own, since all will be scaled."""
        rng = np.random.default_rng([seed, 1])
        for start in range(0, num_prompts, CHUNK):
            yield rng.standard_gamma(burstiness, min(CHUNK, num_prompts - start)).tolist()

    def times() -> Iterator[float]:
        if math.isinf(request_rate):
            for _ in range(num_prompts):
                yield 0.0
            return
        if math.isinf(burstiness):
            for i in range(num_prompts):
                yield (i + 1) / request_rate
            return
        whole = sum(sum(chunk) for chunk in gaps())
        factor = num_prompts / request_rate / whole if whole else 0.0
        time = 0.0
        for chunk in gaps():
            for gap in chunk:
                time += gap
                yield time * factor

    return times()
