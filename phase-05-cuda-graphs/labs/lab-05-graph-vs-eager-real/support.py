"""What the tests of lab 05-05 share: the committed results, what follows from them, and drawn data."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


@cache
def recorded(name: str) -> Any:
    """`steps` or `vllm`, as measure.py wrote them."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


@cache
def inductor_output() -> str:
    """What Inductor wrote for the first shape of `steps.json`; the C++ of its kernels is cut out."""
    return (HERE / "inductor.txt").read_text(encoding="utf-8")


def row_of(hidden_size: int, batch: int) -> dict[str, Any]:
    """A shape's row in `steps.json`."""
    [row] = (
        row
        for row in recorded("steps")["rows"]
        if (row["hidden_size"], row["batch"]) == (hidden_size, batch)
    )
    return dict(row)


def pairs_of(row: dict[str, Any]) -> list[tuple[float, float]]:
    """(eager, compiled) seconds, round by round."""
    return [(taken[0], taken[1]) for taken in row["rounds"]]


def verdict_of(lab: ModuleType, pairs: list[tuple[float, float]]) -> str:
    """By numpy, so that a prediction is not judged by the learner's own functions."""
    ratios = np.array([before / after for before, after in pairs])
    if (ratios > 1).all():
        return str(lab.GAIN)
    return str(lab.LOSS if (ratios < 1).all() else lab.UNDECIDED)


def answers(lab: ModuleType) -> dict[str, Any]:
    """What was measured, under the names that `predictions` has."""
    one, many = row_of(128, 1), row_of(128, 64)
    wide = row_of(2048, 1)
    vllm = {
        row["batch"]: list(zip(*row["seconds"].values(), strict=True))
        for row in recorded("vllm")["rows"]
    }
    return {
        "operators, width 2048 for 128": "as many"
        if wide["operators"] == one["operators"]
        else "more",
        "kernels, width 2048 for 128": "as many" if wide["launches"] == one["launches"] else "more",
        "share of launches left, width 128": "a quarter"
        if 0.2 < sum(one["launches"]) / one["operators"] < 0.29
        else "another",
        "width 128, batch 1": verdict_of(lab, pairs_of(one)),
        "width 128, batch 64": verdict_of(lab, pairs_of(many)),
        "width 2048, batch 1": verdict_of(lab, pairs_of(wide)),
        **{
            f"vLLM on a CPU, batch {batch}": verdict_of(lab, pairs) for batch, pairs in vllm.items()
        },
    }


def drifting(seed: int, ratio: float, rounds: int = 7) -> list[tuple[float, float]]:
    """Pairs `(before, after)` of a machine that is up to ten times slower in one round than in another."""
    rng = np.random.default_rng(seed)
    speed = 10.0 ** rng.uniform(-1, 0, rounds)
    return [(float(ratio * s), float(s)) for s in speed]
