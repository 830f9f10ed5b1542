"""Lab 04-02: rows, tiles, and what a causal mask leaves to be read."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
INF = np.inf


class LoopError(Exception):
    """A formula that counts."""


def without_loop(call: Callable[[], Any]) -> Any:
    """What `call` gives; None where that takes more than 1,000 lines."""
    lines = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines > 1000:
            raise LoopError
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return call()
    except LoopError:
        return None
    finally:
        sys.settrace(before)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions hold: tiles of a prompt, of its halves and of a chunk off a tile's edge, and rows."""
    said = lab.predictions()
    facts = {
        "tiles, masked": (
            [528, 32],
            "How many tiles of keys does the first tile of queries read, how many the last, and which "
            "of them are on the diagonal?",
        ),
        "tiles of both halves": (
            [136, 392],
            "How many tiles of keys does the first tile of queries read, in either half?",
        ),
        "from 2,050: tiles, masked": (
            [37, 4],
            "In which tile of keys is the last query of each tile of queries? How many tiles does a diagonal "
            "cross that does not begin with a tile?",
        ),
        "positions of rows 0, 3, 4, 15": (
            [100, 100, 101, 103],
            "How many rows are one token's?",
        ),
    }
    assert said.keys() == facts.keys(), f"four questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- rows ----------------------------------------------------------------------------------------


def test_row_positions(lab: ModuleType) -> None:
    """Packed rows go token by token, and within a token through the heads of the group."""
    positions = np.asarray(lab.row_positions(40, 3, 3)).tolist()
    assert positions == [40, 40, 40, 41, 41, 41, 42, 42, 42], (
        f"3 tokens from position 40 on, 3 rows each: 40, 40, 40, 41 …, yours {positions}"
    )


# ---- tiles ---------------------------------------------------------------------------------------


def test_tile_bounds(lab: ModuleType) -> None:
    """`tile_bounds` agrees with a check of every key of every tile."""
    for tile in (1, 2, 3, 4, 7):
        for first in range(2 * tile + 2):
            for last in range(first, first + 2 * tile + 2):
                full = seen = 0
                for number in range(last // tile + 3):
                    keys = range(number * tile, number * tile + tile)
                    full += all(key <= first for key in keys)
                    seen += any(key <= last for key in keys)
                got = tuple(lab.tile_bounds(first, last, tile))
                assert got == (full, seen), (
                    f"tokens at {first} to {last}, tiles of {tile}: {full} tiles are seen as a whole by "
                    f"all of them, the first too, and {seen} by any of them; yours {got}"
                )
    got = without_loop(lambda: lab.tile_bounds(10**6, 2 * 10**6, 1))
    assert got is not None, (
        "tokens at 1,000,000 to 2,000,000, tiles of 1: after 1,000 lines yours was still counting. Solve "
        "the two inequalities for the tile's number"
    )


def test_hide_future(lab: ModuleType) -> None:
    """A key is hidden from the rows of earlier tokens, and from no other."""
    got = np.asarray(lab.hide_future(np.ones((1, 4, 4)), 7, np.array([6, 7, 8, 20])))
    want = [0, 1, 2, 4]
    assert got.shape == (1, 4, 4), f"the scores keep their shape, (1, 4, 4); yours {got.shape}"
    seen = np.isfinite(got[0]).sum(axis=1).tolist()
    assert seen == want, (
        f"keys 7 to 10 and rows at 6, 7, 8 and 20: these see {want} of them, a token itself included; "
        f"yours see {seen}"
    )
    row = np.asarray(got[0, 2]).tolist()
    assert row == [1, 1, -INF, -INF], (
        f"keys 7 to 10, a row at 8: the first two keep their score of 1, the others get -inf; yours {row}"
    )


def test_masks_where_needed(lab: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full tiles get no mask: nine in ten of a long prompt's tiles are full."""
    begins: list[int] = []
    right = lab.hide_future

    def watched(scores: Any, begin: int, position: Any) -> Any:
        begins.append(begin)
        return right(scores, begin, position)

    monkeypatch.setattr(lab, "hide_future", watched)
    for start, want in ((16, [16, 20, 24]), (18, [16, 20, 20, 24, 24, 28])):
        begins.clear()
        run(lab, 12, start, query_tile=4, key_tile=4)
        assert sorted(begins) == sorted(want), (
            f"12 tokens from position {start} on, tiles of 4 and 4: the diagonal crosses the tiles that "
            f"begin at {want}, yours called `hide_future` for those at {begins}"
        )


CASES: dict[str, dict[str, int]] = {
    "one token, alone": {"n": 1},
    "a decode": {"n": 1, "start": 22},
    "a whole prompt": {"n": 13},
    "tiles of a size": {"n": 16, "query_tile": 4, "key_tile": 4},
    "a chunk on a tile's edge": {"n": 9, "start": 16, "query_tile": 8, "key_tile": 8},
    "a chunk in a tile's middle": {"n": 9, "start": 18, "query_tile": 4, "key_tile": 8},
    "wide queries, narrow keys": {"n": 21, "start": 5, "query_tile": 16, "key_tile": 3},
    "narrow queries, wide keys": {"n": 10, "start": 11, "query_tile": 2, "key_tile": 16},
    "one key a tile": {"n": 5, "start": 3, "query_tile": 2, "key_tile": 1},
    "no grouping": {"n": 7, "start": 2, "group": 1},
    "one KV head for five": {"n": 7, "start": 2, "group": 5, "num_kv_heads": 1},
}


def run(
    lab: ModuleType,
    n: int,
    start: int = 0,
    query_tile: int = 4,
    key_tile: int = 5,
    group: int = 2,
    num_kv_heads: int = 2,
) -> Any:
    """`prefill` on keys that count; what it gave, the keys and the query."""
    keys = support.CountingKeys(3, start + n, num_kv_heads)
    query = np.random.default_rng(4).normal(size=(n, group * num_kv_heads, 4))
    given = query.copy()
    with np.errstate(all="ignore"):
        out = lab.prefill(query, keys, start, 0.7, query_tile, key_tile)
    assert np.array_equal(query, given), "the query is the caller's, and you have changed it"
    return out, keys, query


@pytest.mark.parametrize("name", CASES)
def test_prefill_is_dense(lab: ModuleType, name: str) -> None:
    """Every token sees all tokens up to itself, wherever the chunk begins and however it is tiled."""
    out, keys, query = run(lab, **CASES[name])
    want = support.dense(query, keys.key, keys.value, CASES[name].get("start", 0), 0.7)
    wrong = support.what_is_wrong(out, want)
    assert not wrong, (
        f"{name}, {CASES[name]}: {wrong}. Token j stands at start + j, sees that position and none after it"
    )


@pytest.mark.parametrize("name", CASES)
def test_tiles_visited(lab: ModuleType, name: str) -> None:
    """Each tile of queries reads each tile of keys that it sees once, and no other."""
    _, keys, query = run(lab, **CASES[name])
    case = {"start": 0, "query_tile": 4, "key_tile": 5} | CASES[name]
    tile, start = case["key_tile"], case["start"]
    ends = [
        min(at + case["query_tile"], len(query)) for at in range(0, len(query), case["query_tile"])
    ]
    want = [
        (begin, min(begin + tile, start + end))
        for end in ends
        for begin in range(0, start + end, tile)
    ]
    assert len(keys.reads) == len(want), (
        f"{name}, {CASES[name]}: {len(ends)} tiles of queries see {len(want)} tiles of {tile} keys, "
        f"yours read {len(keys.reads)}. Nothing after a tile's last token is looked at, and one read "
        "serves all its rows"
    )
    assert sorted(keys.reads) == sorted(want), (
        f"{name}, {CASES[name]}: tile t begins at key t * {tile}, and the last ends with the last token "
        f"of the tile of queries: {want}, yours {keys.reads}"
    )


def test_a_loud_future(lab: ModuleType) -> None:
    """Later tokens change nothing for earlier ones, however large their keys and values are."""
    quiet, _keys, query = run(lab, 12, 6, query_tile=8, key_tile=4)
    for j in range(11):
        loud = support.CountingKeys(3, 18)
        loud.key[:, 7 + j : 18] *= -300
        loud.value[:, 7 + j : 18] += 1000
        with np.errstate(all="ignore"):
            got = lab.prefill(query, loud, 6, 0.7, 8, 4)
        wrong = support.what_is_wrong(got[: j + 1], quiet[: j + 1])
        assert not wrong, f"tokens after {j} shout, and of 0 to {j}: {wrong}"
        assert np.abs(got[j + 1] - quiet[j + 1]).max() > 1, (
            f"token {j + 1} sees itself, so it hears its own shout of 1,000; yours did not change"
        )


def test_any_chunking_is_one_shot(lab: ModuleType) -> None:
    """A prompt cut into any chunks, in any tiles, gives the same as in one shot (twenty draws)."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 40))
        keys = support.CountingKeys(seed, n)
        query = rng.normal(size=(n, 4, 4))
        want = support.dense(query, keys.key, keys.value, 0, 0.5)
        cuts = np.unique(np.append(rng.integers(1, n + 1, int(rng.integers(0, 5))), n)).tolist()
        out, start = [], 0
        for cut in cuts:
            keys.write(cut)  # K and V of this chunk, and of none after it
            with np.errstate(all="ignore"):
                tiles = (int(rng.integers(1, 12)), int(rng.integers(1, 12)))
                out.append(lab.prefill(query[start:cut], keys, start, 0.5, *tiles))
            start = cut
        wrong = support.what_is_wrong(np.concatenate(out), want)
        assert not wrong, (
            f"draw {seed}: {n} tokens in chunks that end at {cuts}, against one shot: {wrong}"
        )


def test_one_tile_of_scores(lab: ModuleType) -> None:
    """480 tokens see 115,440 keys between them, but only one tile of 16 by 16 scores is held at a time."""
    keys = support.CountingKeys(0, 480, 1)
    query = np.random.default_rng(0).normal(size=(480, 8, 4))
    lab.prefill(query, keys, 0, 0.5, 16, 16)
    tracemalloc.start()
    try:
        lab.prefill(query, keys, 0, 0.5, 16, 16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    strip = 16 * 8 * 480 * 8
    assert peak < query.nbytes + strip, (
        f"at most {peak:,} bytes stood in memory beside the cache. The result is {query.nbytes:,}; the "
        f"scores of one tile of queries with all keys would be {strip:,}, of one tile with another "
        f"{16 * 8 * 16 * 8:,}"
    )
