"""Lab 09-02: whose random numbers a request draws with. A solution.

V tokens in the vocabulary, n rows in a batch. Noise is drawn from the exponential distribution, float32; a
row's token is the one with the largest probability over noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.sample.generator import TorchGenerator
from mini_vllm.sample.gumbel import philox, uniform

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """Given: a row of the batch that needs noise."""

    req_id: str
    seed: int | None
    position: int


@dataclass(frozen=True)
class Situation:
    """Given: how the request with seed 7 is served."""

    neighbours: tuple[int | str | None, ...] = ()
    token_budget: int = 256
    num_blocks: int = 64


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    return {
        "one stream": [8, 20],
        "thrown away": 3,
        "the CPU path": ["greedy", "no seed"],
        "the same seed": 1,
        "by step": ["a prompt in chunks", "preempted"],
    }


# ---- a stream per request ------------------------------------------------------------------------


class Streams:
    """Where each row's noise comes from, as in model runner V1."""

    def __init__(self, seed: int) -> None:
        self.shared = TorchGenerator(seed)
        self.streams: dict[str, TorchGenerator] = {}
        self.last: dict[str, Array] = {}
        self.again: dict[str, Array] = {}

    def noise(self, rows: Sequence[Row], vocab: int) -> Array:
        """One row of noise per row of the batch."""
        return np.stack([self._draw(row, vocab) for row in rows])

    def _draw(self, row: Row, vocab: int) -> Array:
        if row.seed is None:
            return self.shared.standard_exponential(vocab)
        if row.req_id not in self.streams:
            self.streams[row.req_id] = TorchGenerator(row.seed)
        drawn = self.again.pop(row.req_id, None)
        if drawn is None:
            drawn = self.streams[row.req_id].standard_exponential(vocab)
        self.last[row.req_id] = drawn
        return drawn

    def discard(self, req_id: str) -> None:
        """The token that was drawn for this request last is thrown away."""
        if req_id in self.last:
            self.again[req_id] = self.last[req_id]

    def finish(self, req_id: str) -> None:
        """The request is over."""
        for kept in (self.streams, self.last, self.again):
            kept.pop(req_id, None)


# ---- no stream at all ----------------------------------------------------------------------------


def stateless_noise(rows: Sequence[Row], vocab: int) -> Array:
    """The noise of (seed, position), as in model runner V2."""
    tiny = np.finfo(np.float32).tiny
    seeds = [int(philox(row.seed or 0, row.position)) for row in rows]
    drawn = np.stack([uniform(seed, np.arange(vocab)) for seed in seeds])
    noise: Array = -np.log(np.maximum(drawn, tiny))
    return noise


# ---- the experiments -----------------------------------------------------------------------------


def experiments() -> list[Situation]:
    """At most five situations in which the request's tokens must be what they are alone."""
    return [
        Situation(neighbours=(7,)),
        Situation(neighbours=(None,)),
        Situation(token_budget=16),
        Situation(neighbours=(3,), num_blocks=8),
    ]


def changed_by(
    play: Callable[[Situation], list[int]], situations: Sequence[Situation]
) -> list[Situation]:
    """Those situations in which the request gets other tokens than alone."""
    alone = play(Situation())
    return [situation for situation in situations if play(situation) != alone]
