"""Given: a matrix in slow memory that counts what is loaded and stored, and how the tests use it."""

from __future__ import annotations

from typing import Any

import numpy as np


class Counted:
    """A float32 matrix in slow memory. A tile comes over with `load`, and goes back with `store`.

    Attributes:
        shape: rows and columns.
        loaded, stored: elements so far.
        tiles: (rows, columns) of every load, in order.
    """

    def __init__(self, values: np.ndarray) -> None:
        self._values = np.array(values, np.float32)
        self._writes = np.zeros(self._values.shape, np.int64)
        self.shape: tuple[int, int] = self._values.shape
        self.loaded = self.stored = 0
        self.tiles: list[tuple[int, int]] = []

    def load(self, rows: slice, columns: slice) -> np.ndarray:
        """A copy of these rows and columns; what lies behind the last is cut off, as numpy does."""
        tile = self._values[rows, columns].copy()
        self.loaded += tile.size
        self.tiles.append(tile.shape)
        return tile

    def store(self, rows: slice, columns: slice, values: np.ndarray) -> None:
        """Overwrite these rows and columns; `values` has their shape."""
        place = self._values[rows, columns]
        if np.shape(values) != place.shape:
            raise ValueError(f"{np.shape(values)} does not fit into {place.shape}")
        place[:] = values
        self._writes[rows, columns] += 1
        self.stored += place.size

    @property
    def values(self) -> np.ndarray:
        """All of it, uncounted: for looking at the result."""
        return self._values.copy()

    @property
    def writes(self) -> np.ndarray:
        """How often each element was stored, `[rows, columns]`."""
        return self._writes.copy()


def draw(m: int, n: int, k: int, seed: int = 0) -> tuple[Counted, Counted, Counted]:
    """x [m, k], w [k, n] and an empty result [m, n], which holds NaN."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    return Counted(x), Counted(w), Counted(np.full((m, n), np.nan))


def count(lab: Any, m: int, n: int, k: int, tile: Any, seed: int = 0) -> dict[str, int]:
    """Elements that the lab's `tiled_matmul` moves: loaded of x and w, stored of the result."""
    x, w, out = draw(m, n, k, seed)
    lab.tiled_matmul(x, w, out, tile)
    return {"x": x.loaded, "w": w.loaded, "out": out.stored + out.loaded}


def shapes(number: int, seed: int) -> list[tuple[int, ...]]:
    """Random m, n, k and sides of a tile, few of them multiples."""
    rng = np.random.default_rng(seed)
    drawn = zip(rng.integers(1, 41, (number, 3)), rng.integers(1, 17, (number, 3)), strict=True)
    return [(*sizes.tolist(), *sides.tolist()) for sizes, sides in drawn]
