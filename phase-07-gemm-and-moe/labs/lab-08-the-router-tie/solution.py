"""Lab 07-08: when a router turns, how far that throws a model, and what it explains. One way to do it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Ids = NDArray[np.int64]

AS_BEFORE, RARER, GONE = "as before", "rarer", "gone"


class Run(NamedTuple):
    """Given: one token in one step, L layers, E experts, of which it goes to k.

    Attributes:
        router: float32 `[L, E]`, what each layer's router said.
        experts: int `[L, k]`, the experts that it went to, in any order.
        logits: float32 `[V]`, of the next token.
    """

    router: Array
    experts: Ids
    logits: Array


def predictions() -> dict[str, str | float | bool]:
    """The eight answers of the README."""
    return {
        "nearer than 1e-06, of a million": 4,
        "logits move, no expert turned": 1e-5,
        "logits move, an expert turned": 1.0,
        "bits change, dense": False,
        "bits change, Mixtral": True,
        "rounded to three digits": AS_BEFORE,
        "VLLM_BATCH_INVARIANT=1 on a CPU": AS_BEFORE,
        "tokens from which the order changes": 65,
    }


# ---- a tie ---------------------------------------------------------------------------------------


def gap(logits: Array, k: int) -> float:
    """Sorted, the k-th less the next one."""
    best = np.sort(logits.astype(np.float64))[::-1]
    return float(best[k - 1] - best[k])


def can_turn(logits: Array, k: int, noise: float) -> bool:
    """Those that are in fall, those that are out rise, and a tie goes to the lower index."""
    exact = logits.astype(np.float64)
    order = np.argsort(-exact, kind="stable")
    moved = exact + noise
    moved[order[:k]] -= 2 * noise
    return set(np.argsort(-moved, kind="stable")[:k].tolist()) != set(order[:k].tolist())


def mix(logits: Array, outputs: Array, k: int) -> Array:
    """Softmax over the k best alone."""
    chosen = np.argsort(-logits, kind="stable")[:k]
    weights = np.exp(logits[chosen] - logits[chosen].max())
    mixed: Array = weights / weights.sum() @ outputs[chosen]
    return mixed


def jump(logits: Array, outputs: Array, k: int) -> float:
    """The weight of the k-th, times the distance of the two outputs."""
    order = np.argsort(-logits, kind="stable")
    weights = np.exp(logits[order[:k]] - logits[order[0]])
    distance = np.abs(outputs[order[k - 1]] - outputs[order[k]]).max()
    return float(weights[-1] / weights.sum() * distance)


# ---- company -------------------------------------------------------------------------------------


def rows_together(experts: Ids, row: int) -> list[int]:
    """How often each of its experts is chosen in the whole step."""
    return [int(np.count_nonzero(experts == one)) for one in experts[row]]


# ---- a ticket ------------------------------------------------------------------------------------


def first_turn(alone: Run, beside: Run) -> int | None:
    """The first layer with another set of experts."""
    for layer, (a, b) in enumerate(zip(alone.experts, beside.experts, strict=True)):
        if set(a.tolist()) != set(b.tolist()):
            return layer
    return None


def verdict(alone: Run, beside: Run, noise: float) -> str:
    """The first thing that is more than noise decides."""
    layer = first_turn(alone, beside)
    if layer is not None:
        tie = can_turn(alone.router[layer], alone.experts.shape[1], noise)
        return "router tie" if tie else "fault"
    if np.abs(alone.logits.astype(np.float64) - beside.logits).max() > noise:
        return "fault"
    return "noise" if alone.logits.argmax() == beside.logits.argmax() else "token tie"
