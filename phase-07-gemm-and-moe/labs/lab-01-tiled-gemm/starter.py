"""Lab 07-01: a matrix product in tiles, and what it moves. Your work: every NotImplementedError."""

from __future__ import annotations

from typing import Any, NamedTuple


class Tile(NamedTuple):
    """A program's tile. (Given.) It holds m x n sums, and loads m x k of x and k x n of w at a time."""

    m: int
    n: int
    k: int


def predictions() -> dict[str, Any]:
    """Your answers to the README's five questions, under the names given there."""
    raise NotImplementedError


def tiled_matmul(x: Any, w: Any, out: Any, tile: Tile) -> None:
    """Store `x @ w` into `out`, tile by tile.

    All three are `Counted` (support.py): `x.load(slice(0, 16), slice(32, 64))` brings a tile into fast
    memory as a numpy array, `out.store(rows, columns, values)` writes one back. `x.shape` costs nothing.

    Args:
        x: `[M, K]`, in slow memory.
        w: `[K, N]`.
        out: `[M, N]`. It holds NaN; each element is stored exactly once and never loaded.
        tile: no load of x is larger than `[tile.m, tile.k]`, none of w than `[tile.k, tile.n]`. M, N and K
            need not be multiples. A `load` cuts off what lies behind the end.
    """
    raise NotImplementedError


def traffic(m: int, n: int, k: int, tile: Tile) -> dict[str, int]:
    """What `tiled_matmul` moves, without running it.

    Returns:
        Elements under the names "x" and "w" (loaded) and "out" (stored), for any sizes and tile.
    """
    raise NotImplementedError


def choose_tile(m: int, n: int, k: int, room: int) -> Tile:
    """The tile that moves the fewest elements in all and fits into fast memory.

    Candidates: `tile.m` and `tile.n` each of 16, 32, 64, 128, 256, and `tile.k` 32. What must fit into
    `room` elements: the sums, a tile of x and a tile of w. Of several that move equally little, the one
    that takes the least room, and of those the one with the smallest `tile.m`.

    Raises:
        ValueError: nothing fits; the message names `room`.
    """
    raise NotImplementedError


def bytes_per_token(m: int, n: int, k: int, tile: Tile, item: int) -> dict[str, float]:
    """The bill for one token of a batch of `m`: bytes of "x", "w" and "out", `item` bytes per element."""
    raise NotImplementedError
