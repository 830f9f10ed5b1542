"""Lab 07-06: where the experts lie, and when a second copy of one pays. Your work: every
NotImplementedError; what has a body is given.

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
    raise NotImplementedError


# ---- what is balanced ----------------------------------------------------------------------------


def window_load(window: Array, phy2log: Array, num_experts: int) -> Array:
    """Each expert's tokens over all steps of the window, its copies together.

    Args:
        window: int [steps, slots], the tokens that each slot had in each step.
        phy2log: int [slots], the expert in each slot while the window was recorded.

    Returns:
        int64 [num_experts].
    """
    raise NotImplementedError


def gpu_tokens(load: Array, phy2log: Array, num_gpus: int) -> Array:
    """Tokens on each GPU, float64 [num_gpus], if the copies of an expert share its tokens evenly."""
    copies = np.bincount(phy2log, minlength=len(load))
    tokens: Array = (load / copies)[phy2log].reshape(num_gpus, -1).sum(axis=1)
    return tokens


def imbalance(load: Array, phy2log: Array, num_gpus: int) -> float:
    """The busiest GPU's tokens over the mean of all GPUs; 1.0 is perfect, and so is no load at all."""
    raise NotImplementedError


def experts_read(load: Array, phy2log: Array, num_gpus: int) -> int:
    """How many slots' weights the GPU that reads most of them reads in this step.

    Args:
        load: int [experts], the tokens of one step.
    """
    raise NotImplementedError


# ---- balancing -----------------------------------------------------------------------------------


def balanced_packing(load: Array, num_packs: int) -> tuple[Array, Array]:
    """Given: items into packs of equally many items, so that the packs' loads come out alike.

    Greedy, in vLLM's order: the heaviest item first, each into the lightest pack that has room; of equals the
    lower number first. Packs of one item are not sorted: item i is in pack i.

    Args:
        load: [items]; `num_packs` divides the number of items.

    Returns:
        the pack of each item, and its place in it: 0 for the item that was put in first. int64 [items] both.
    """
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
    """Give every expert a slot, and each slot that is left to the expert whose copies have most to do.

    Slot i < len(load) holds expert i. Of experts with equally much to do the first gets the slot.

    Returns:
        the expert in each slot, int64 [num_slots], and how many copies each expert has, int64 [experts].
    """
    raise NotImplementedError


def rebalance(load: Array, num_slots: int, num_gpus: int) -> Array:
    """The placement for this load: copies first, then packs of slots, one pack per GPU.

    The slots of pack 0 come first, in the order in which they were put in, then those of pack 1, and so on.

    Args:
        num_slots: at least len(load), and a multiple of num_gpus.

    Returns:
        phy2log, int64 [num_slots].
    """
    raise NotImplementedError


# ---- when a copy pays ----------------------------------------------------------------------------


def step_us(step: Array, phy2log: Array, num_gpus: int, token_us: float, slot_us: float) -> float:
    """Microseconds that one layer's experts take in one step: those of the slowest GPU.

    Args:
        step: int [experts], the tokens of the step.
        token_us: computing one token of one expert.
        slot_us: reading one slot.
    """
    raise NotImplementedError


def choose_slots(steps: Array, num_gpus: int, token_us: float, slot_us: float) -> int:
    """The number of slots with which the window's steps take the least time in all.

    From as many slots as experts to twice as many, both included, and only numbers that the GPUs can share
    equally. EPLB places once per window. Of equally fast numbers the fewest slots: a slot costs memory.

    Args:
        steps: int [steps, experts], the tokens that each expert had in each step.
        token_us, slot_us: as for `step_us`.
    """
    raise NotImplementedError
