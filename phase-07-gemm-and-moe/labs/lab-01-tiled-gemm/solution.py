"""Lab 07-01: a matrix product in tiles, and what it moves. A solution."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Tile(NamedTuple):
    """A program's tile. (Given.) It holds m x n sums, and loads m x k of x and k x n of w at a time."""

    m: int
    n: int
    k: int


SIDES = (16, 32, 64, 128, 256)


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    return {
        "tile of 1": 2 * 64**3,
        "tile of 16": 2 * 64 * 64 * 4,
        "half of tile.k": 1,
        "which of the three": ["64x64", "16x256"],
        "MB of w per token": [201.33, 12.58, 6.29, 6.29, 6.29],
    }


def tiled_matmul(x: Any, w: Any, out: Any, tile: Tile) -> None:
    """Store `x @ w` into `out`, tile by tile."""
    (m, k), n = x.shape, w.shape[1]
    for row in range(0, m, tile.m):
        rows = slice(row, min(row + tile.m, m))
        for column in range(0, n, tile.n):
            columns = slice(column, min(column + tile.n, n))
            sums = np.zeros((rows.stop - row, columns.stop - column), np.float32)
            for start in range(0, k, tile.k):
                part = slice(start, start + tile.k)
                sums += x.load(rows, part) @ w.load(part, columns)
            out.store(rows, columns, sums)


def traffic(m: int, n: int, k: int, tile: Tile) -> dict[str, int]:
    """What `tiled_matmul` moves, without running it."""
    down, across = -(-m // tile.m), -(-n // tile.n)
    return {"x": m * k * across, "w": k * n * down, "out": m * n}


def choose_tile(m: int, n: int, k: int, room: int) -> Tile:
    """The tile that moves the fewest elements in all and fits into fast memory."""

    def needs(tile: Tile) -> int:
        return tile.m * tile.n + tile.k * (tile.m + tile.n)

    candidates = [Tile(rows, columns, 32) for rows in SIDES for columns in SIDES]
    fitting = [tile for tile in candidates if needs(tile) <= room]
    if not fitting:
        raise ValueError(f"no tile fits into a room of {room} elements")
    return min(
        fitting, key=lambda tile: (sum(traffic(m, n, k, tile).values()), needs(tile), tile.m)
    )


def bytes_per_token(m: int, n: int, k: int, tile: Tile, item: int) -> dict[str, float]:
    """The bill for one token of a batch of `m`: bytes of "x", "w" and "out", `item` bytes per element."""
    return {name: item * moved / m for name, moved in traffic(m, n, k, tile).items()}
