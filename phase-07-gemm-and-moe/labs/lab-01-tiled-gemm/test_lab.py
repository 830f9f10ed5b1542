"""Lab 07-01: the product in tiles, what it moves, the tile that moves the least, and the bill per token."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """There are five predictions: four about tiles, and one about a larger Mixtral's bill."""
    weights = 6144 * 16384 * 2 / 1e6
    facts = {
        "tile of 1": (2 * 64**3, "How many products are there, and what does each load?"),
        "tile of 16": (
            2 * 64 * 64 * 4, "How many tiles of the result are there, and what does each load in all?",
        ),
        "half of tile.k": (
            1, "How many loads does a tile of the result make then, and how large is each?",
        ),
        "which of the three": (
            ["64x64", "16x256"], "How often is x loaded, how often w, and which of the two is large?",
        ),
        "MB of w per token": (
            [round(weights * -(-m // 32) / m, 2) for m in (1, 16, 64, 256, 1024)],
            "How many tiles of rows does the batch have, and what does each load of w?",
        ),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"five questions; these stand in one of the README and your answers only: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact, 0.011 if name.startswith("MB") else 0)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [(8, 8, 8, (4, 4, 4)), (1, 20, 12, (16, 8, 8)), (33, 17, 29, (16, 8, 4)), (5, 3, 7, (1, 1, 1))],
)
def test_the_product_is_right(
    lab: ModuleType, m: int, n: int, k: int, tile: tuple[int, int, int]
) -> None:
    """The product is right even where no size is a multiple of its tile."""
    x, w, out = support.draw(m, n, k)
    lab.tiled_matmul(x, w, out, lab.Tile(*tile))
    assert not np.isnan(out.values).any(), (
        f"[{m}, {k}] times [{k}, {n}] in tiles {tile}: {int(np.isnan(out.values).sum())} of {m * n} results "
        "were never stored"
    )
    want = x.values.astype(np.float64) @ w.values.astype(np.float64)
    error = float(np.abs(out.values - want).max())
    assert error < 1e-4, (
        f"[{m}, {k}] times [{k}, {n}] in tiles {tile}: a result is {error:.2g} away from x @ w"
    )


def test_no_load_is_larger_than_its_tile(lab: ModuleType) -> None:
    """Fast memory has room for one tile of each matrix, not for a whole row of tiles."""
    tile = lab.Tile(8, 4, 16)
    x, w, out = support.draw(20, 18, 50)
    lab.tiled_matmul(x, w, out, tile)
    for name, matrix, most in (("x", x, (tile.m, tile.k)), ("w", w, (tile.k, tile.n))):
        large = [each for each in matrix.tiles if each[0] > most[0] or each[1] > most[1]]
        assert not large, (
            f"a load of {name} brings {list(large[0])}, and the tile has room for {list(most)}"
        )


def test_the_sums_stay_in_fast_memory(lab: ModuleType) -> None:
    """Each result is stored once, when its sum is complete, and none is loaded back."""
    x, w, out = support.draw(20, 18, 50)
    lab.tiled_matmul(x, w, out, lab.Tile(8, 4, 16))
    assert out.loaded == 0, f"{out.loaded} results were loaded back; their sums need not leave"
    often = int(out.writes.max())
    assert often == 1, f"a result was stored {often} times; K has {-(-50 // 16)} tiles here"


def test_the_loop_loads_no_more_than_it_must(lab: ModuleType) -> None:
    """For each tile of sums, its part of x is loaded once, and so is its part of w."""
    for sizes, tile, want in (
        ((32, 48, 64), (16, 16, 16), {"x": 6144, "w": 6144, "out": 1536}),
        ((30, 40, 64), (16, 16, 48), {"x": 5760, "w": 5120, "out": 1200}),
    ):
        got = support.count(lab, *sizes, lab.Tile(*tile))
        assert got == want, (
            f"m, n, k = {sizes} in tiles {tile}: {want} elements need to move, and {got} do"
        )


# ---- the formula ---------------------------------------------------------------------------------


def test_the_formula_is_the_count(lab: ModuleType) -> None:
    """The formula equals the counted traffic on 200 random shapes and tiles."""
    for number, (m, n, k, *sides) in enumerate(support.shapes(200, seed=1)):
        tile = lab.Tile(*sides)
        counted, said = support.count(lab, m, n, k, tile, seed=number), lab.traffic(m, n, k, tile)
        assert said == counted, (
            f"m, n, k = {m, n, k} in tiles {sides}: your loop moves {counted}, your formula says {said}"
        )


# ---- the tile ------------------------------------------------------------------------------------


def least(m: int, n: int, k: int, room: int) -> tuple[int, tuple[int, int, int]]:
    """The fewest elements, and the tile that moves them, by trying all."""
    sides = (16, 32, 64, 128, 256)
    tried = [
        (m * k * -(-n // b) + k * n * -(-m // a) + m * n, a * b + 32 * (a + b), a, b)
        for a in sides
        for b in sides
        if a * b + 32 * (a + b) <= room
    ]
    moved, _, rows, columns = min(tried)
    return moved, (rows, columns, 32)


def test_the_tile_moves_the_least_that_the_room_allows(lab: ModuleType) -> None:
    """The best tile is square for a large batch, wide for a small one, and never larger than fast memory."""
    rng = np.random.default_rng(2)
    for _ in range(100):
        m, n, k = (int(size) for size in rng.choice([1, 3, 16, 40, 100, 500, 2000], 3))
        room = int(rng.choice([1280, 4000, 8192, 20000, 100000]))
        moved, want = least(m, n, k, room)
        got = tuple(lab.choose_tile(m, n, k, room))
        needs = got[0] * got[1] + got[2] * (got[0] + got[1])
        assert needs <= room, (
            f"m, n, k = {m, n, k}: the tile {got} holds {needs} elements, and the room is {room}"
        )
        mine = m * k * -(-n // got[1]) + k * n * -(-m // got[0]) + m * n
        assert mine == moved, (
            f"m, n, k = {m, n, k}, room {room}: the tile {got} moves {mine:,} elements; another that fits "
            f"moves {moved:,}"
        )
        assert got == want, (
            f"m, n, k = {m, n, k}, room {room}: {got} and {want} move equally little; which takes less room, "
            "and which has the smaller tile.m?"
        )


def test_a_room_for_nothing_is_refused(lab: ModuleType) -> None:
    """A room in which no tile fits raises a ValueError that names `room`."""
    with pytest.raises(ValueError) as refused:
        lab.choose_tile(64, 64, 64, 1279)
    assert "1279" in str(refused.value), (
        f"the message about a room of 1279 elements names it; yours is {str(refused.value)!r}"
    )


# ---- the bill ------------------------------------------------------------------------------------


def test_the_bill_per_token(lab: ModuleType) -> None:
    """One token pays for all of w; up to tile.m tokens share it; beyond that a token pays no less."""
    tile = lab.Tile(64, 128, 32)
    for m, want in (
        (1, {"x": 57344, "w": 7340032, "out": 7168}),
        (64, {"x": 57344, "w": 114688, "out": 7168}),
        (256, {"x": 57344, "w": 114688, "out": 7168}),
        (257, {"x": 57344, "w": 142803.0, "out": 7168}),
    ):
        got = lab.bytes_per_token(m, 3584, 1024, tile, 2)
        assert got == pytest.approx(want, abs=1), (
            f"{m} tokens times w [1024, 3584], 2 bytes per element, tile {tuple(tile)}: {want} bytes per "
            f"token, not {got}"
        )
