"""Lab 03-03: who waits for whose prompt. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol


class Step(Protocol):
    """A step, as `support.Step` has it."""

    @property
    def tokens(self) -> dict[str, int]:
        """How many tokens it computed for whom."""

    @property
    def sampled(self) -> frozenset[str]:
        """Who got a token of the answer at its end."""

    @property
    def arrived(self) -> frozenset[str]:
        """Who came since the step before."""


Cost = Callable[[Step], float]
"""How long a step takes, in whatever unit: `total_tokens`, or milliseconds of an A100."""


class Latency(NamedTuple):
    """What somebody waited.

    Attributes:
        ttft: time to first token: from arrival to the end of the step that brings it.
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
    """Your guesses at the four questions of the README, under the names that stand there."""
    raise NotImplementedError


# ---- what somebody waits -------------------------------------------------------------------------


def total_tokens(step: Step) -> float:
    """The simplest cost of a step: all tokens that it computes, for everybody."""
    raise NotImplementedError


def latencies(steps: Sequence[Step], cost: Cost) -> dict[str, Latency]:
    """TTFT and ITLs of everybody who got a token.

    Steps follow one another without a pause. Whoever has arrived waits through each of them to its
    end, whether it computes something for them or not. Somebody who arrives between two steps waits
    from the beginning of the second.

    Args:
        steps: in order.
        cost: how long each takes.
    """
    raise NotImplementedError


def percentile(values: Sequence[float], q: float) -> float:
    """The `q`-th percentile, 0 to 100, between neighbours as `numpy.percentile` has it by default.

    Of n values in order, the q-th percentile stands at place q / 100 * (n - 1), counted from 0. Between
    two places it is as far from one to the other as the place is.

    Raises ValueError if there are no values.
    """
    raise NotImplementedError


def worst_neighbour(steps: Sequence[Step], victim: str) -> str | None:
    """Who, in one of the steps that brought the victim a token, had the most tokens computed.

    The victim's own tokens do not count. Of two that are equal the first is taken, by step and within a
    step by its order. None if the victim was always alone.
    """
    raise NotImplementedError


# ---- the dial ------------------------------------------------------------------------------------


def best_setting(rows: Sequence[Setting], limit: float) -> Setting | None:
    """The setting with the smallest TTFT whose p99 of ITL is at most `limit`; None if there is none."""
    raise NotImplementedError


def goodput(found: Mapping[str, Latency], ttft_limit: float, itl_limit: float) -> float:
    """The share of people, 0 to 1, who were served well: nobody's limit is exceeded.

    Both must hold: TTFT at most `ttft_limit`, and the 99th percentile of the ITLs, if there are any, at
    most `itl_limit`. 0.0 if there is nobody.
    """
    raise NotImplementedError
