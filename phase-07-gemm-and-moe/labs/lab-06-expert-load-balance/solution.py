"""Lab 07-06: where the experts lie, and when a second copy of one pays. One solution.

A slot holds the weights of one expert. GPU g of G has the g-th of G equal, contiguous parts of the slots.
`phy2log` says which expert each slot holds; with as many slots as experts no expert has a copy. Loads are
token counts: how often an expert was chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# ---- before you write anything -------------------------------------------------------------------


def predictions() -> dict[str, list[float]]:
    """Your answers to the four questions of the README, under the names given there."""
    return {
        "slots read": [2, 4, 3],
        "50 and seven tens": [1.333, 1.333, 1.056],
        "GPUs where one expert is too much": [3, 9],
        "tokens where copies pay": [1500],
    }


# ---- what is balanced ----------------------------------------------------------------------------


def window_load(window: Array, phy2log: Array, num_experts: int) -> Array:
    """Each expert's tokens over all steps of the window, its copies together."""
    load = np.zeros(num_experts, np.int64)
    np.add.at(load, phy2log, window.sum(axis=0))
    return load


def gpu_tokens(load: Array, phy2log: Array, num_gpus: int) -> Array:
    """Tokens on each GPU, float64 [num_gpus], if the copies of an expert share its tokens evenly."""
    copies = np.bincount(phy2log, minlength=len(load))
    tokens: Array = (load / copies)[phy2log].reshape(num_gpus, -1).sum(axis=1)
    return tokens


def imbalance(load: Array, phy2log: Array, num_gpus: int) -> float:
    """The busiest GPU's tokens over the mean of all GPUs; 1.0 is perfect, and so is no load at all."""
    tokens = gpu_tokens(load, phy2log, num_gpus)
    return float(tokens.max() / tokens.mean()) if tokens.any() else 1.0


def experts_read(load: Array, phy2log: Array, num_gpus: int) -> int:
    """How many slots' weights the GPU that reads most of them reads in this step."""
    return int((load[phy2log] > 0).reshape(num_gpus, -1).sum(axis=1).max())


# ---- balancing -----------------------------------------------------------------------------------


def balanced_packing(load: Array, num_packs: int) -> tuple[Array, Array]:
    """Given: items into packs of equally many items, so that the packs' loads come out alike."""
    size = len(load) // num_packs
    pack, place = np.arange(len(load)), np.zeros(len(load), np.int64)
    if size == 1:
        return pack, place
    loads, filled = np.zeros(num_packs), np.zeros(num_packs, np.int64)
    for item in np.argsort(-load, kind="stable"):
        lightest = int(np.argmin(loads))
        pack[item], place[item] = lightest, filled[lightest]
        filled[lightest] += 1
        loads[lightest] += load[item]
        if filled[lightest] == size:
            loads[lightest] = np.inf
    return pack, place


def replicate_experts(load: Array, num_slots: int) -> tuple[Array, Array]:
    """Give every expert a slot, and each slot that is left to the expert whose copies have most to do."""
    phy2log = np.arange(num_slots)
    copies = np.ones(len(load), np.int64)
    for slot in range(len(load), num_slots):
        phy2log[slot] = np.argmax(load / copies)
        copies[phy2log[slot]] += 1
    return phy2log, copies


def rebalance(load: Array, num_slots: int, num_gpus: int) -> Array:
    """The placement for this load: copies first, then packs of slots, one pack per GPU."""
    phy2log, copies = replicate_experts(load, num_slots)
    pack, place = balanced_packing((load / copies)[phy2log], num_gpus)
    placed = np.empty_like(phy2log)
    placed[pack * (num_slots // num_gpus) + place] = phy2log
    return placed


# ---- when a copy pays ----------------------------------------------------------------------------


def step_us(step: Array, phy2log: Array, num_gpus: int, token_us: float, slot_us: float) -> float:
    """Microseconds of a step's experts: what its slowest GPU takes."""
    computing = gpu_tokens(step, phy2log, num_gpus).max() * token_us
    reading = experts_read(step, phy2log, num_gpus) * slot_us
    return float(max(computing, reading))


def choose_slots(steps: Array, num_gpus: int, token_us: float, slot_us: float) -> int:
    """The number of slots with which the window's steps take the least time."""
    load, experts = steps.sum(axis=0), steps.shape[1]
    times = {}
    for num_slots in range(experts, 2 * experts + 1):
        if num_slots % num_gpus == 0:
            phy2log = rebalance(load, num_slots, num_gpus)
            times[num_slots] = sum(
                step_us(step, phy2log, num_gpus, token_us, slot_us) for step in steps
            )
    return min(times, key=lambda num_slots: times[num_slots])
