"""Lab 03-03: who waits for whose prompt. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol


class Step(Protocol):
    """A step, as `support.Step` has it."""

    @property
    def tokens(self) -> dict[str, int]:
        """How many tokens it computed for each request."""

    @property
    def sampled(self) -> frozenset[str]:
        """Requests that got an answer token at its end."""

    @property
    def arrived(self) -> frozenset[str]:
        """Requests that arrived since the step before."""


Cost = Callable[[Step], float]
"""How long a step takes, in whatever unit: `total_tokens`, or milliseconds of an A100."""


class Latency(NamedTuple):
    """How long a request waited.

    Attributes:
        ttft: time to first token: from arrival to the end of the step that yields it.
        itls: inter-token latencies: for each later token, the time since the one before.
    """

    ttft: float
    itls: list[float]


class Setting(NamedTuple):
    """What a budget does: the stream's 99th percentile of ITL, and the document's TTFT."""

    budget: int
    p99_itl: float
    ttft: float


# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, list[int] | int]:
    """Your guesses for the README's four questions, under the names that it uses."""
    raise NotImplementedError


# ---- what somebody waits -------------------------------------------------------------------------


def total_tokens(step: Step) -> float:
    """The simplest cost of a step: all tokens that it computes, for everybody."""
    raise NotImplementedError


def latencies(steps: Sequence[Step], cost: Cost) -> dict[str, Latency]:
    """TTFT and ITLs of everybody who got a token.

    Steps follow one another without a pause. A request that has arrived waits through each step to its
    end, whether the step computes something for it or not. A request that arrives between two steps
    waits from the beginning of the second.

    Args:
        steps: in order.
        cost: how long each takes.
    """
    raise NotImplementedError


def percentile(values: Sequence[float], q: float) -> float:
    """The `q`-th percentile, 0 to 100, interpolated as `numpy.percentile` does by default.

    Of n values in order, the q-th percentile is at place q / 100 * (n - 1), counted from 0. If the place
    is a fraction of the way between two values, the percentile is the same fraction of the way.

    Raises ValueError if there are no values.
    """
    raise NotImplementedError


def worst_neighbour(steps: Sequence[Step], victim: str) -> str | None:
    """The request with the most tokens computed in one of the steps that yielded the victim a token.

    The victim's own tokens do not count. Among equals take the first, by step and within a step by its
    order. None if the victim was always alone.
    """
    raise NotImplementedError


# ---- the dial ------------------------------------------------------------------------------------


def best_setting(rows: Sequence[Setting], limit: float) -> Setting | None:
    """The setting with the smallest TTFT whose p99 of ITL is at most `limit`; None if there is none."""
    raise NotImplementedError


def goodput(found: Mapping[str, Latency], ttft_limit: float, itl_limit: float) -> float:
    """The share of requests, 0 to 1, that were served well: within both limits.

    TTFT must be at most `ttft_limit`, and the 99th percentile of the ITLs, if there are any, at most
    `itl_limit`. 0.0 if there are no requests.
    """
    raise NotImplementedError
