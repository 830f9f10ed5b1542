"""A `LinearCost` from steps that were timed: least squares, no coefficient below zero.

A negative cost of a token means nothing, and would make some step take less than no time. So a term
that comes out negative is left out and the rest fitted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mini_vllm.sim.cost import LinearCost, StepWork

HOST_TERMS = ("steps", "num_reqs", "num_new_reqs")
"""The host looks at requests, not at tokens: planning a prompt of 900 tokens is like planning one of 9."""
DEVICE_TERMS = StepWork._fields
SHARES = 50
"""Of the timed steps, for their scatter: the last holds the slowest 2 %."""


@dataclass(frozen=True)
class TimedStep:
    """One measured step: what it was asked for, and the seconds that host and device took."""

    work: StepWork
    host: float
    device: float


def fit(
    works: Sequence[StepWork], seconds: Sequence[float], terms: Iterable[str]
) -> tuple[float, ...]:
    """Seconds a unit of each count of `StepWork`, 0 for those not among `terms`.

    Errors count in proportion to the step's expected time: 1 ms is much for a step of 5 and little for
    one of 100. The expectation comes from the fit before, not from the measurement itself, because
    dividing by what was measured would make slow steps count less and pull the mean down.

    Raises ValueError for fewer than 2 steps a term.
    """
    columns = [i for i, name in enumerate(StepWork._fields) if name in set(terms)]
    if len(works) < 2 * len(columns):
        raise ValueError(
            f"{len(works)} timed steps are too few to fit {len(columns)} terms: at least "
            f"{2 * len(columns)}"
        )
    counts = np.array(works, np.float64)[:, columns]
    took = np.asarray(seconds, np.float64)
    expected = np.full(len(took), took.mean())
    for _ in range(4):
        solution = _not_negative(counts / expected[:, None], took / expected)
        expected = np.maximum(counts @ solution, took.mean() / 100)
    found = [0.0] * len(StepWork._fields)
    for column, value in zip(columns, solution, strict=True):
        found[column] = float(value)
    return tuple(found)


def _not_negative(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least-squares solution of `a @ x = b` among those found by dropping negative terms, the most
    negative first."""
    scale = np.abs(a).max(axis=0)
    scale[scale == 0] = 1.0
    kept = list(range(a.shape[1]))
    x = np.zeros(a.shape[1])
    while kept:
        part, *_ = np.linalg.lstsq(a[:, kept] / scale[kept], b, rcond=None)
        if part.min() >= 0:
            x[kept] = part / scale[kept]
            break
        del kept[int(part.argmin())]
    return x


def calibrate(
    steps: Sequence[TimedStep],
    adds: Sequence[float],
    name: str,
    source: str,
    num_kv_tokens: int | None = None,
    max_model_len: int | None = None,
) -> LinearCost:
    """The cost that fits the timed steps.

    Args:
        adds: seconds that each request took to be added; their mean is what adding costs.
    """
    works = [step.work for step in steps]
    cost = LinearCost(
        name=name,
        source=source,
        host_s=fit(works, [step.host for step in steps], HOST_TERMS),
        device_s=fit(works, [step.device for step in steps], DEVICE_TERMS),
        add_request_s=float(np.mean(adds)) if len(adds) else 0.0,
        num_kv_tokens=num_kv_tokens,
        max_model_len=max_model_len,
    )
    return replace(cost, scatter=scatter(steps, cost))


def scatter(steps: Sequence[TimedStep], cost: LinearCost) -> tuple[float, ...]:
    """What steps took over what `cost` expects, from the fastest: the means of `SHARES` equal shares.

    Means, so that drawing them at random keeps the total.
    """
    ratios = [(s.host + s.device) / (cost.host(s.work) + cost.device(s.work)) for s in steps]
    shares = np.array_split(np.sort(ratios), min(SHARES, len(ratios)))
    return tuple(round(float(share.mean()), 4) for share in shares)
