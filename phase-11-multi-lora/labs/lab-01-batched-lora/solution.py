"""Lab 11-01: many adapters in one step. One way to do it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """What an adapter adds to one projection of a layer."""

    start: int
    lora_a: Array
    lora_b: Array


def predictions() -> dict[str, Any]:
    """The answers to the README's six questions."""
    return {
        "smaller": (51.2, 199.1),
        "factor": (0.25, 2.0),
        "reads": 7.53,
        "products": (22, 9, 5),
        "side by side": 17,
        "minus one": ([3, 6, 8], []),
    }


# ---- one adapter ---------------------------------------------------------------------------------


def scaled(lora_b: Array, alpha: float, rank: int, use_rslora: bool) -> Array:
    """B times alpha / rank, or alpha / sqrt(rank)."""
    factor = alpha / (math.sqrt(rank) if use_rslora else rank)
    return lora_b * np.float32(factor)


def lora_delta(x: Array, lora_a: Array, lora_b: Array) -> Array:
    """Shrink, then expand."""
    shrunk = x @ lora_a.T
    return shrunk @ lora_b.T


def place(sizes: Mapping[str, int], pairs: Mapping[str, tuple[Array, Array]]) -> list[Piece]:
    """The pieces of those projections that the adapter has."""
    pieces = []
    start = 0
    for name, size in sizes.items():
        if name in pairs:
            lora_a, lora_b = pairs[name]
            pieces.append(Piece(start, lora_a, lora_b))
        start += size
    return pieces


def single_layer(x: Array, weight: Array, pieces: Sequence[Piece]) -> Array:
    """The base's product, and the adapter's deltas for all rows."""
    y = x @ weight.T
    for piece in pieces:
        columns = slice(piece.start, piece.start + len(piece.lora_b))
        y[:, columns] += lora_delta(x, piece.lora_a, piece.lora_b)
    return y


# ---- a step's rows -------------------------------------------------------------------------------


def group_rows(slot_of_row: Sequence[int]) -> dict[int, Rows]:
    """All rows of each slot."""
    slots = np.asarray(slot_of_row, dtype=np.int64)
    return {int(slot): np.flatnonzero(slots == slot) for slot in np.unique(slots) if slot >= 0}


def add_grouped(
    y: Array, x: Array, slot_of_row: Sequence[int], slots: Sequence[Sequence[Piece]]
) -> None:
    """Each slot's rows together, in place."""
    for slot, rows in group_rows(slot_of_row).items():
        mine = x[rows]
        for piece in slots[slot]:
            columns = slice(piece.start, piece.start + len(piece.lora_b))
            y[rows, columns] += lora_delta(mine, piece.lora_a, piece.lora_b)


def step_layer(
    x: Array, weight: Array, slot_of_row: Sequence[int], slots: Sequence[Sequence[Piece]]
) -> Array:
    """The base's product once, then every adapter's deltas."""
    y = x @ weight.T
    add_grouped(y, x, slot_of_row, slots)
    return y


# ---- what the CPU build does ---------------------------------------------------------------------


def borrowed(slot_of_row: Sequence[int], filled: Sequence[bool]) -> dict[int, int]:
    """-1 counts from the end: the last slot's delta."""
    if all(slot < 0 for slot in slot_of_row) or not filled[-1]:
        return {}
    return {row: len(filled) - 1 for row, slot in enumerate(slot_of_row) if slot < 0}
