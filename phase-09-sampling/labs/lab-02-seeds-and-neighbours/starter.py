"""Lab 09-02: whose random numbers a request draws with. Your work: every NotImplementedError.

V tokens in the vocabulary, n rows in a batch. Noise is drawn from the exponential distribution, float32; a
row's token is the one with the largest probability over noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mini_vllm.sample.generator import TorchGenerator  # noqa: F401
from mini_vllm.sample.gumbel import philox, uniform  # noqa: F401

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """Given: a row of the batch that needs noise.

    Attributes:
        req_id: the request's id.
        seed: its seed; None: it has none.
        position: of the last token that this step computes for it. The token drawn comes after that.
    """

    req_id: str
    seed: int | None
    position: int


@dataclass(frozen=True)
class Situation:
    """Given: how a request with seed 7 is served. It has 44 prompt tokens and generates 12.

    Attributes:
        neighbours: one request per entry, which comes before ours in the batch, has its own 44 prompt
            tokens, generates 8, and leaves. A number is its seed, None: it has none, "greedy": its
            temperature is 0.
        token_budget: `max_num_batched_tokens`, at least 8. A prompt that does not fit into a step is
            computed in chunks.
        num_blocks: of 16 tokens each, at least 5. One is never given out. A request enters with blocks for
            its prompt, and needs another after each 16 tokens. If none is free, the last request in the
            batch, which may be the one that asks, is preempted: it gives its blocks back, waits, and has
            its tokens computed again.
    """

    neighbours: tuple[int | str | None, ...] = ()
    token_budget: int = 256
    num_blocks: int = 64


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    raise NotImplementedError


# ---- a stream per request ------------------------------------------------------------------------


class Streams:
    """Where each row's noise comes from, as in model runner V1.

    `TorchGenerator(seed).standard_exponential(V)` gives the next V numbers of a stream. It cannot be set
    back; how you repeat a draw is up to you.

    Args:
        seed: of the one stream that all rows without a seed share.
    """

    def __init__(self, seed: int) -> None:
        """At first there is only the stream that requests without a seed share."""
        raise NotImplementedError

    def noise(self, rows: Sequence[Row], vocab: int) -> Array:
        """One row of noise per row of the batch: float32 [n, V].

        A row with a seed draws from a stream that is its request's alone: it begins with the request, and
        each draw goes on where the last one ended, whatever the batch and the request's place in it. Two
        requests with the same seed have equal streams, not one. A row without a seed draws from the shared
        stream, in the batch's order; no other row takes anything from there.
        """
        raise NotImplementedError

    def discard(self, req_id: str) -> None:
        """The token drawn last for this request is thrown away: its next noise is the same again.

        Called at most once per draw. Does nothing for a request without a seed, or for a finished one.
        """
        raise NotImplementedError

    def finish(self, req_id: str) -> None:
        """The request has finished. Nothing of it is kept: a later one with this id starts afresh."""
        raise NotImplementedError


# ---- no stream at all ----------------------------------------------------------------------------


def stateless_noise(rows: Sequence[Row], vocab: int) -> Array:
    """The noise of (seed, position), as in model runner V2: float32 [n, V].

    `philox(seed, position)` is a number for the row. With that as the seed, `uniform(number, np.arange(V))`
    gives each token its u, evenly from [0, 1). Raised to at least `np.finfo(np.float32).tiny`, -log(u) is a
    draw from the exponential distribution.

    Args:
        rows: all have a seed. vLLM gives a request without one a random seed when it arrives.
    """
    raise NotImplementedError


# ---- the experiments -----------------------------------------------------------------------------


def experiments() -> list[Situation]:
    """At most five situations in which the request's tokens must be what they are alone.

    Between them they find a sampler with one stream for all requests; one that ignores all seeds in a batch
    where a row has none; one that does not take back a draw that is thrown away; and three whose streams
    belong not to the request but to the seed, to the row of the batch (and begin with the seed of the first
    request there), or to the stay in the batch.
    """
    raise NotImplementedError


def changed_by(
    play: Callable[[Situation], list[int]], situations: Sequence[Situation]
) -> list[Situation]:
    """Those situations, in their order, in which the request gets other tokens than alone.

    Args:
        play: serves the request on a new engine, and returns its tokens. `Situation()` serves it alone.
    """
    raise NotImplementedError
