"""Lab 11-01: many adapters in one step. Your work: every NotImplementedError.

n is the number of rows, `in` and `out` are a layer's numbers per row, r is an adapter's rank. All arrays are
float32. Write matrix products with `@`, so that they can be counted, and leave your arguments as they are
unless a docstring says otherwise.
"""

from __future__ import annotations

import math  # noqa: F401
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """Given: what an adapter adds to one projection of a layer.

    Attributes:
        start: the projection's first column in the layer's result.
        lora_a: `[r, in]`.
        lora_b: `[size, r]`, scaled; `size` is the number of the projection's columns.
    """

    start: int
    lora_a: Array
    lora_b: Array


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names given there."""
    raise NotImplementedError


# ---- one adapter ---------------------------------------------------------------------------------


def scaled(lora_b: Array, alpha: float, rank: int, use_rslora: bool) -> Array:
    """B as it is kept in memory: times alpha / rank, or with `use_rslora` times alpha / sqrt(rank).

    Returns a new float32 array.
    """
    raise NotImplementedError


def lora_delta(x: Array, lora_a: Array, lora_b: Array) -> Array:
    """What an adapter adds to one projection.

    Args:
        x: `[n, in]`.
        lora_a: `[r, in]`.
        lora_b: `[size, r]`, already scaled.

    Returns:
        `[n, size]`, by n * r * (in + size) multiplications.
    """
    raise NotImplementedError


def place(sizes: Mapping[str, int], pairs: Mapping[str, tuple[Array, Array]]) -> list[Piece]:
    """An adapter's pieces for a layer whose projections lie side by side, as q, k and v do.

    Args:
        sizes: each projection's number of columns, by name, in the order in which they lie.
        pairs: A and B of those projections that the adapter has, by name, in any order, B scaled.

    Returns:
        A piece for each of them, from left to right. [] if it has none.
    """
    raise NotImplementedError


def single_layer(x: Array, weight: Array, pieces: Sequence[Piece]) -> Array:
    """A layer's result where all rows have one adapter.

    Args:
        x: `[n, in]`.
        weight: the base's, `[out, in]`.
        pieces: the adapter's; columns without one are the base's.

    Returns:
        `[n, out]`, a new array.
    """
    raise NotImplementedError


# ---- a step's rows -------------------------------------------------------------------------------


def group_rows(slot_of_row: Sequence[int]) -> dict[int, Rows]:
    """Which rows each slot has.

    Args:
        slot_of_row: a slot's number for each of n rows, in any order; -1 is no adapter.

    Returns:
        By slot, the indices of all its rows, ascending, in an integer array. Slots without rows, and rows
        without an adapter, are not in it.
    """
    raise NotImplementedError


def add_grouped(
    y: Array, x: Array, slot_of_row: Sequence[int], slots: Sequence[Sequence[Piece]]
) -> None:
    """Add to each row its adapter's deltas, with all rows of an adapter in one product.

    Two products for each piece of each adapter that has rows in the step, and no others.

    Args:
        y: `[n, out]`, changed in place. Rows without an adapter keep every bit.
        x: `[n, in]`.
        slot_of_row: as above.
        slots: by slot, its adapter's pieces for this layer. [] if the adapter has none here, and for a free
            slot.
    """
    raise NotImplementedError


def step_layer(
    x: Array, weight: Array, slot_of_row: Sequence[int], slots: Sequence[Sequence[Piece]]
) -> Array:
    """A layer's result for a step, `[n, out]`: one product with the base, then `add_grouped`."""
    raise NotImplementedError


# ---- what the CPU build does ---------------------------------------------------------------------


def borrowed(slot_of_row: Sequence[int], filled: Sequence[bool]) -> dict[int, int]:
    """Which rows without an adapter get one from vLLM's CPU build, by the README's facts.

    Args:
        slot_of_row: as above.
        filled: by slot, whether it was ever filled.

    Returns:
        By row, ascending, the slot whose numbers it is given, counted from 0. Rows that get zeros or nothing
        are not in it.
    """
    raise NotImplementedError
