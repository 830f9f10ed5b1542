"""Lab 03-03: the reference solution."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol


class Step(Protocol):
    """A step, as `support.Step` has it."""

    @property
    def tokens(self) -> dict[str, int]: ...
    @property
    def sampled(self) -> frozenset[str]: ...
    @property
    def arrived(self) -> frozenset[str]: ...


Cost = Callable[[Step], float]


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


def predictions() -> dict[str, list[int] | int]:
    return {
        "whole": [257, 2, 2, 2, 1, 1],
        "threshold 32": [33] * 8 + [2, 2, 2, 1],
        "ttft, whole": 257,
        "ttft, threshold 32": 264,
    }


def total_tokens(step: Step) -> float:
    return float(sum(step.tokens.values()))


def latencies(steps: Sequence[Step], cost: Cost) -> dict[str, Latency]:
    found: dict[str, Latency] = {}
    since: dict[str, float] = {}
    for step in steps:
        for name in step.arrived:
            since[name] = 0.0
        took = cost(step)
        for name in since:
            since[name] += took
        for name in step.sampled:
            waited, since[name] = since[name], 0.0
            if name in found:
                found[name].itls.append(waited)
            else:
                found[name] = Latency(waited, [])
    return found


def percentile(values: Sequence[float], q: float) -> float:
    if not values:
        raise ValueError("no values, no percentile")
    ordered = sorted(values)
    place = q / 100 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def worst_neighbour(steps: Sequence[Step], victim: str) -> str | None:
    worst: tuple[int, str] | None = None
    for step in steps:
        if victim not in step.sampled:
            continue
        for name, tokens in step.tokens.items():
            if name != victim and (worst is None or tokens > worst[0]):
                worst = tokens, name
    return None if worst is None else worst[1]


def best_setting(rows: Sequence[Setting], limit: float) -> Setting | None:
    allowed = [row for row in rows if row.p99_itl <= limit]
    return min(allowed, key=lambda row: row.ttft) if allowed else None


def goodput(found: Mapping[str, Latency], ttft_limit: float, itl_limit: float) -> float:
    if not found:
        return 0.0
    good = [
        one.ttft <= ttft_limit and (not one.itls or percentile(one.itls, 99) <= itl_limit)
        for one in found.values()
    ]
    return sum(good) / len(good)
