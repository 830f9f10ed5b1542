"""Lab 04-01: a softmax with a state instead of its scores, and what one query reads."""

from __future__ import annotations

import tracemalloc
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
INF = np.inf
NOTHING_SEEN = (
    "A row that has seen no key has m = -inf, and -inf - -inf is NaN: take something else off there"
)


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions hold: l by hand, what Ida's token reads, and how long her chat may become."""
    said = lab.predictions()
    facts = {
        "l after each tile": (
            [0, 4 / 3, 5 / 3],
            "What is l while nothing is seen? When the largest score grows, by which factor does the old l "
            "count less?",
        ),
        "rows of K, entries": (
            [203, 13],
            "How often is a token's row read, and in how many blocks are 203 tokens?",
        ),
        "bytes of K and V, of scores": (
            [16_384_000, 512_000],
            "How many numbers does a layer keep of a token, and how many scores has a token? Of how many "
            "bytes is each?",
        ),
        "longest context": (
            [14_528],
            "How many bytes are a token's scores, for all four heads?",
        ),
    }
    assert said.keys() == facts.keys(), f"four questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact, 5e-3)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- the state -----------------------------------------------------------------------------------


def test_before_the_first_tile(lab: ModuleType) -> None:
    """`empty` gives a state of no key to which the first tile is an update like any other."""
    state = lab.empty((2, 3), 4)
    shapes = [part.shape for part in state]
    assert shapes == [(2, 3), (2, 3), (2, 3, 4)], (
        f"m and l have a number for each row, (2, 3), acc a vector of 4 each, (2, 3, 4); yours {shapes}"
    )
    dtypes = {str(part.dtype) for part in state}
    assert dtypes == {"float64"}, f"everything is float64 here, yours {sorted(dtypes)}"
    assert (state.m == -INF).all(), (
        f"no score was seen, and any score must become the maximum: m = -inf, not {state.m.flat[0]}"
    )
    assert not np.any([*state.l.flat, *state.acc.flat]), (
        f"sums of nothing are 0; yours l = {state.l.flat[0]}, acc = {state.acc[0, 0]}"
    )


def test_a_tile_by_hand(lab: ModuleType) -> None:
    """`update` is right by hand where the second tile has the larger score, and where the first has it."""
    value = np.array([[6.0, 0.0], [0.0, 6.0], [6.0, 6.0]])
    scores = np.log([[1.0, 2.0, 6.0], [4.0, 2.0, 1.0]])
    state = lab.update(lab.empty((2,), 2), scores[:, :2], value[:2])
    assert np.allclose([state.m, state.l], [np.log([2, 4]), [1.5, 1.5]]), (
        "after log 1 and log 2 a row has m = log 2 and l = 1/2 + 2/2; after log 4 and log 2 it is log 4 "
        f"and 4/4 + 2/4. Yours: m = log {np.exp(state.m).round(3).tolist()}, l = "
        f"{state.l.round(3).tolist()}"
    )
    assert np.allclose(state.acc, [[3, 6], [6, 3]]), (
        "the values (6, 0) and (0, 6), each times its weight and not divided by anything: "
        f"[[3, 6], [6, 3]], yours {state.acc.round(3).tolist()}"
    )
    state = lab.update(state, scores[:, 2:], value[2:])
    assert np.allclose(state.m, np.log([6, 4])), (
        "then log 6 comes to row 0 and log 1 to row 1. The maximum is that of all tiles: log 6 and log 4, "
        f"yours log {np.exp(state.m).round(3).tolist()}"
    )
    assert np.allclose(state.l, [1.5, 1.75]), (
        "row 0: what was added under log 2 counts 2/6 now, so l = 1.5 / 3 + 6/6 = 1.5. Row 1: 1.5 + 1/4. "
        f"Yours {state.l.round(3).tolist()}"
    )
    assert np.allclose(state.acc, [[7, 8], [7.5, 4.5]]), (
        "row 0: (3, 6) / 3 + (6, 6) = (7, 8). Row 1: (6, 3) + (6, 6) / 4 = (7.5, 4.5). "
        f"Yours {state.acc.round(3).tolist()}. acc is rescaled as l is"
    )
    got = lab.finish(state)
    assert np.allclose(got, [[14 / 3, 16 / 3], [30 / 7, 18 / 7]]), (
        f"acc / l = [[4.667, 5.333], [4.286, 2.571]], yours {np.round(got, 3).tolist()}"
    )


def test_a_state_stays_as_it_was(lab: ModuleType) -> None:
    """`update` and `finish` leave the state that they are given as it was."""
    value = np.array([[2.0], [8.0]])
    before = lab.update(lab.empty((1,), 1), np.array([[1.0, 0.0]]), value)
    copy = [np.array(part) for part in before]
    lab.finish(before)
    scores = np.array([[3.0, -INF]])
    lab.update(before, scores, value)
    for name, now, then in zip(["m", "l", "acc"], before, copy, strict=True):
        assert np.array_equal(now, then), (
            f"{name} was {then.tolist()}, and after `finish` and one more `update` it is "
            f"{now.tolist()}. A split (lab 04-03) goes on from one state twice: make a new one"
        )
    assert scores.tolist() == [[3.0, -INF]], f"the scores are the caller's; you left {scores}"


def test_rows_that_have_seen_nothing(lab: ModuleType) -> None:
    """A row that sees no key in its first tile gets the right result from later tiles."""
    value = np.arange(8.0).reshape(4, 2)
    hidden = np.full((2, 2), -INF)
    hidden[1, 0] = 0.5
    with np.errstate(all="ignore"):
        state = lab.update(lab.empty((2,), 2), hidden, value[:2])
        assert not any(np.isnan(part).any() for part in state), (
            f"both keys are hidden from row 0: m, l, acc are {[part[0].tolist() for part in state]}. "
            f"{NOTHING_SEEN}"
        )
        assert (state.m[0], state.l[0]) == (-INF, 0), (
            "row 0 has seen no key, so its state is that of no key, m = -inf and l = 0; yours m = "
            f"{state.m[0]} and l = {state.l[0]}"
        )
        none = lab.finish(state)
        assert np.array_equal(none[0], [0, 0]), (
            f"a row that has seen no key finishes as 0, yours as {none[0]}. 0 / 0 is NaN, and nobody "
            "asks for it"
        )
        assert np.allclose(none[1], value[0], rtol=0, atol=1e-12), (
            f"row 1 has seen key 0 alone, so it gets its value, {value[0].tolist()}; yours "
            f"{none[1].tolist()}"
        )
        late = lab.update(state, np.array([[-900.0, -901.0], [-INF, -INF]]), value[2:])
        got = lab.finish(late)
    want = support.whole_softmax(np.array([[-900.0, -901.0], [0.5, -INF]]), value[[2, 3]])
    want[1] = value[0]
    support.expect_close(
        got,
        want,
        "two hidden keys, then scores of -900 and -901",
        "Whatever came off while nothing was seen must not stay as the maximum: beside a 0 the weight "
        "of -900 is 0, and so is the sum of all weights",
    )


@pytest.mark.parametrize("tiles", [[12], [1] * 12, [5, 4, 3], [11, 1]], ids=str)
def test_scores_of_ten_thousand(lab: ModuleType, tiles: list[int]) -> None:
    """Scores of 10,000 and of -10,000 give the right result, in one row or each alone."""
    rng = np.random.default_rng(1)
    value = rng.normal(size=(12, 3))
    small = rng.normal(size=12)
    rows = {
        "rising": np.linspace(-1e4, 1e4, 12),
        "falling": np.linspace(1e4, -1e4, 12),
        "all near -10,000": small - 1e4,
        "all near 10,000": small + 1e4,
        "in leaps": 1e4 * (-1.0) ** np.arange(12) + small,
    }
    scores = np.stack(list(rows.values()))
    state, end = lab.empty((len(rows),), 3), 0
    with np.errstate(all="ignore"):
        for size in tiles:
            state = lab.update(state, scores[:, end : end + size], value[end : end + size])
            end += size
        got = lab.finish(state)
    want = support.whole_softmax(scores, value)
    for row, name in enumerate(rows):
        support.expect_close(
            got[row],
            want[row],
            f"scores {name}, tiles of {tiles}",
            "No exp overflows while its argument is 0 or less, and no sum is 0 while the largest score "
            "has the weight 1",
        )


def test_any_tiles_give_the_same(lab: ModuleType) -> None:
    """A cut into any tiles gives the same result, with hidden keys among them (thirty draws)."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        heads, rows, n = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 20))
        scores = rng.normal(size=(heads, rows, n)) * rng.choice([1, 30, 3000])
        scores[rng.random(scores.shape) < rng.choice([0, 0.3, 0.9])] = -INF
        value = rng.normal(size=(heads, n, 4))
        cuts = np.unique(np.append(rng.integers(1, n + 1, 4), n))
        state, first = lab.empty((heads, rows), 4), 0
        with np.errstate(all="ignore"):
            for cut in cuts.tolist():
                state = lab.update(state, scores[..., first:cut], value[:, first:cut])
                first = cut
            got = lab.finish(state)
        want = np.stack([support.whole_softmax(*head) for head in zip(scores, value, strict=True)])
        support.expect_close(
            got, want, f"draw {seed}: {n} keys, tiles that end at {cuts.tolist()}", NOTHING_SEEN
        )


# ---- the loop ------------------------------------------------------------------------------------

POISON = (
    "What is not the request's holds NaN here: slots past its last token, and the blocks that the table "
    "names past its last one"
)
CASES: dict[str, dict[str, Any]] = {
    "one token": {"seq_len": 1, "tile": 4},
    "a block, a tile": {"seq_len": 4, "tile": 4},
    "a tile over blocks": {"seq_len": 13, "tile": 8},
    "a block over tiles": {"seq_len": 13, "tile": 3, "block_size": 16},
    "a tail of one": {"seq_len": 17, "tile": 8},
    "tiles of one": {"seq_len": 7, "tile": 1},
    "a tile for all": {"seq_len": 11, "tile": 64},
    "no grouping": {"seq_len": 9, "tile": 4, "group": 1},
    "one KV head for six": {"seq_len": 9, "tile": 4, "num_kv_heads": 1, "group": 6},
}


def run(lab: ModuleType, seq_len: int, tile: int, group: int = 2, **shape: Any) -> Any:
    """`decode` on a memory of this shape: what it gave, the memory, the query."""
    memory = support.CountingMemory(seq_len, seq_len, **shape)
    num_heads = group * memory.dense_key.shape[1]
    query = np.random.default_rng(7).normal(size=(num_heads, memory.dense_key.shape[2]))
    given = query.copy()
    out = lab.decode(query, memory, seq_len, 0.6, tile)
    assert np.array_equal(query, given), "the query is the caller's, and you have changed it"
    return out, memory, query


@pytest.mark.parametrize("name", CASES)
def test_decode_is_dense(lab: ModuleType, name: str) -> None:
    """`decode` gives the same as attention without blocks and without tiles, in a poisoned cache."""
    out, memory, query = run(lab, **CASES[name])
    want = support.dense(query, memory.dense_key, memory.dense_value, 0.6)
    looks = support.known_mistake(out, query, memory, 0.6)
    support.expect_close(out, want, f"{name}, {CASES[name]}, scale 0.6{looks}", POISON)


@pytest.mark.parametrize("name", CASES)
def test_every_row_is_read_once(lab: ModuleType, name: str) -> None:
    """`decode` reads each K and each V once for all heads, and nothing past the end."""
    _, memory, query = run(lab, **CASES[name])
    seq_len = CASES[name]["seq_len"]
    for kind, counts in (("K", memory.keys), ("V", memory.values)):
        past = sum(times for position, times in counts.items() if not 0 <= position < seq_len)
        assert not past, (
            f"{name}: {past} rows of {kind} were read that are not the request's: it has {seq_len} "
            f"tokens in blocks of {memory.block_size}, so the last tile ends at {seq_len}"
        )
        missing = [position for position in range(seq_len) if not counts[position]]
        assert not missing, f"{name}: {kind} at positions {missing} was never read"
        most = max(counts.values())
        again = [position for position, times in counts.items() if times > 1]
        assert again != [seq_len - 1] or seq_len == 1, (
            f"{name}: {kind} of the last token, at {seq_len - 1}, was read {most} times, and no other twice. "
            "The last tile is not filled up, it ends with the last token"
        )
        assert most == 1, (
            f"{name}: {kind} was read up to {most} times a position, {sum(counts.values())} rows for "
            f"{seq_len} tokens. {len(query)} query heads share {memory.dense_key.shape[1]} KV heads: "
            "read a tile once, and score it with all of them"
        )


@pytest.mark.parametrize("name", CASES)
def test_entries_in_use_only(lab: ModuleType, name: str) -> None:
    """`decode` reads no entry past the request's last block, where ids left over from others stand."""
    _, memory, _ = run(lab, **CASES[name])
    used = -(-CASES[name]["seq_len"] // memory.block_size)
    assert set(memory.looked_up) == set(range(used)), (
        f"{name}: {CASES[name]['seq_len']} tokens lie in {used} blocks of {memory.block_size}, so "
        f"entries 0 to {used - 1} are in use; yours looked up {sorted(memory.looked_up)}"
    )


def test_one_tile_at_a_time(lab: ModuleType) -> None:
    """Tiles go by the keys and not by the blocks, and 4,096 tokens need no more room than 256."""
    for name, case in CASES.items():
        _, memory, _ = run(lab, **case)
        tile, seq_len = case["tile"], case["seq_len"]
        want = [min(tile, seq_len - first) for first in range(0, seq_len, tile)]
        assert memory.reads == want, (
            f"{name}: {seq_len} tokens in tiles of {tile}, blocks of {memory.block_size}: K is read in "
            f"pieces of {want}, yours {memory.reads}. A tile is one read, and where a block ends has "
            "nothing to do with it"
        )
    peaks = []
    for seq_len in (256, 4096):
        memory = support.CountingMemory(0, seq_len, block_size=16, num_kv_heads=1)
        query = np.ones((32, 5))
        # Counts of reads grow with the request; they are made before anybody looks.
        lab.decode(query, memory, seq_len, 0.1, 16)
        tracemalloc.start()
        try:
            lab.decode(query, memory, seq_len, 0.1, 16)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert memory.largest == 16, (
            f"tiles of 16: the largest read has {memory.largest} rows. A tile is one read, of K and of V"
        )
    scores = 32 * 4096 * 8
    assert peaks[1] - peaks[0] < scores / 8, (
        f"256 tokens take {peaks[0]:,} bytes beside the cache and 4,096 take {peaks[1]:,}. All scores "
        f"of 32 heads are {scores:,} bytes: they, or the K and V, stay in memory. Only the state goes "
        "from tile to tile"
    )


# ---- what it takes -------------------------------------------------------------------------------


def test_bytes_read(lab: ModuleType) -> None:
    """`bytes_read` counts K, V and the block table, with a tail and without."""
    for arguments, want in (
        ((4000, 16, 8, 128, 2), (16_384_000, 1000)),
        ((203, 16, 2, 32, 4), (103_936, 52)),
        ((1, 16, 8, 64, 1), (1024, 4)),
        ((17, 16, 1, 96, 2), (6528, 8)),
        ((3, 1, 1, 1, 1), (6, 12)),
    ):
        got = tuple(lab.bytes_read(*arguments))
        assert got == want, (
            f"seq_len, block_size, num_kv_heads, head_size, element_size = {arguments}: {want[0]:,} "
            f"bytes of K and V and {want[1]:,} of the table, yours {got}. Padding of a last block is "
            "not read"
        )


def test_numbers_held(lab: ModuleType) -> None:
    """With a whole softmax the room grows with the request; with a state it does not."""
    for arguments, want in (
        ((4000, 4, 128, 64), (16_512, 776)),
        ((16, 1, 8, 16), (24, 26)),
        ((100_000, 32, 128, 32), (3_204_096, 5184)),
        ((3, 2, 4, 16), (14, 44)),
    ):
        got = tuple(lab.numbers_held(*arguments))
        assert got == want, (
            f"seq_len, rows, head_size, tile = {arguments}: {want[0]:,} numbers with a whole softmax "
            f"(scores and sums of values) and {want[1]:,} with a state (scores of a full tile, m, l, acc); "
            f"yours {got}"
        )
