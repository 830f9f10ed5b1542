"""Lab 07-06: where the experts lie, and when a second copy of one pays. One solution.

A slot holds the weights of one expert. GPU g of G has the g-th of G equal, contiguous parts of the slots.
`phy2log` says which expert each slot holds; with as many slots as experts nobody has a copy. Loads are
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
        "8 experts on 3 GPUs": [3, 3, 2],
        "90 and seven tens": [1.5, 1.5, 1.125],
        "GPUs where one expert is too much": [3, 9],
        "window and step": [1.0, 1.6],
    }


# ---- where the experts lie -----------------------------------------------------------------------


def expert_map(num_gpus: int, gpu: int, num_experts: int) -> tuple[int, Array]:
    """What one GPU holds under the placement `linear`, before anything is balanced."""
    each, more = divmod(num_experts, num_gpus)
    held = each + (gpu < more)
    first = gpu * each + min(gpu, more)
    local = np.full(num_experts, -1, np.int32)
    local[first : first + held] = np.arange(held)
    return held, local


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
    """How many experts' weights the GPU that reads most of them reads in this step."""
    return int((load[phy2log] > 0).reshape(num_gpus, -1).sum(axis=1).max())


# ---- balancing -----------------------------------------------------------------------------------


def balanced_packing(load: Array, num_packs: int) -> tuple[Array, Array]:
    """Put items into packs of equally many items, so that the packs' loads come out alike."""
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


def fewest_slots(load: Array, num_gpus: int, limit: float) -> int | None:
    """The least number of slots with which the balanced placement keeps to the limit."""
    experts = len(load)
    for num_slots in range(experts, 2 * experts + 1):
        if num_slots % num_gpus == 0:
            phy2log = rebalance(load, num_slots, num_gpus)
            if imbalance(load, phy2log, num_gpus) <= limit:
                return num_slots
    return None
