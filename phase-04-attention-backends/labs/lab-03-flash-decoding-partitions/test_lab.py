"""Lab 04-03: states, their merge, and that no way of putting parts together is wrong."""

from __future__ import annotations

from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in

support = load_support(__file__)
INF = np.inf
NOTHING = "A row without a key has m = -inf, and -inf - -inf is NaN: take something else off there"


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions hold: a merge by hand, the busiest multiprocessor, empty segments, and bytes."""
    said = lab.predictions()
    facts = {
        "m, l, acc": (
            [3, 2, 8],
            "Which of the two has the larger m, and by which power of two does the other count less?",
        ),
        "keys with 1, 16, 17 parts": (
            [4096, 256, 482],
            "How many keys has each program, and how many programs does the busiest of the 132 work on?",
        ),
        "segments with keys": (
            [13, 10, 16],
            "How many tiles are there, and how many must a segment take so that 16 segments are enough?",
        ),
        "bytes of states": (
            [532_480],
            "How many numbers are one head's m, l and acc, and how often does each cross the bus?",
        ),
    }
    assert said.keys() == facts.keys(), f"four questions, {sorted(facts)}; yours: {sorted(said)}"
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- parts ---------------------------------------------------------------------------------------


def test_a_part_by_hand(lab: ModuleType) -> None:
    """In a part the weights are powers of two, and acc is not divided by anything."""
    query = np.array([[1.0, 0.0], [0.0, 1.0]])
    key = np.array([[0.0, 2.0], [1.0, 0.0], [2.0, 0.0]])
    value = np.array([[4.0, 0.0], [0.0, 4.0], [4.0, 4.0]])
    state = lab.attend_partial(query, key, value, np.log(2))
    assert np.allclose(state.m, [2, 2]), (
        "with a scale of log 2 = 0.693 the scores of row 0 are 0, 1 and 2 in powers of two: exp(x log "
        f"2) is 2 ** x. Of row 1: 2, 0 and 0. So m = [2, 2]; yours {np.round(state.m, 3).tolist()}"
    )
    assert np.allclose(state.l, [1.75, 1.5]), (
        f"l: 1/4 + 1/2 + 1, and 1 + 1/4 + 1/4; yours {np.round(state.l, 3).tolist()}"
    )
    assert np.allclose(state.acc, [[5, 6], [5, 2]]), (
        "acc: (4, 0)/4 + (0, 4)/2 + (4, 4) = (5, 6), and (4, 0) + (0, 4)/4 + (4, 4)/4 = (5, 2); yours "
        f"{np.round(state.acc, 3).tolist()}. Divide at the very end"
    )


def test_a_part_of_nothing(lab: ModuleType) -> None:
    """A part without keys is a part like any other."""
    query = np.ones((3, 4))
    state = lab.attend_partial(query, np.empty((0, 4)), np.empty((0, 4)), 0.5)
    shapes = [np.shape(part) for part in state]
    assert shapes == [(3,), (3,), (3, 4)], f"3 rows, 4 numbers: (3,), (3,), (3, 4); yours {shapes}"
    want = ([-INF] * 3, [0] * 3, [[0] * 4] * 3)
    assert tuple(np.asarray(part).tolist() for part in state) == want, (
        f"no key: m = -inf, l = 0, acc = 0; yours {support.show(state)}"
    )
    with np.errstate(all="ignore"):
        out = lab.finish(state)
    assert np.array_equal(out, np.zeros((3, 4))), (
        f"and it finishes as 0, yours as {out[0].tolist()}"
    )


def test_merge_by_hand(lab: ModuleType) -> None:
    """`merge` is right with the larger maximum on the right and on the left, and changes neither state."""
    a = lab.State(np.array([3.0, 0.0]), np.array([1.5, 1.0]), np.array([[6.0], [2.0]]))
    b = lab.State(np.array([1.0, 2.0]), np.array([2.0, 3.0]), np.array([[8.0], [4.0]]))
    copies = [np.array(part) for part in (*a, *b)]
    for name, got in (("a, b", lab.merge(a, b)), ("b, a", lab.merge(b, a))):
        assert np.allclose(got.m, [3, 2]), (
            f"merge({name}): m = [3, 2], yours {np.asarray(got.m).tolist()}"
        )
        assert np.allclose(got.l, [2, 3.25]), (
            f"merge({name}): l = 1.5 + 2/4 and 1/4 + 3, [2, 3.25]; yours {np.round(got.l, 4).tolist()}"
        )
        assert np.allclose(got.acc, [[8], [4.5]]), (
            f"merge({name}): acc = 6 + 8/4 and 2/4 + 4, [[8], [4.5]]; yours {np.round(got.acc, 4).tolist()}"
        )
    for now, then in zip((*a, *b), copies, strict=True):
        assert np.array_equal(now, then), (
            f"{then.tolist()} became {now.tolist()}: `merge` makes a new state"
        )


def test_nothing_is_neutral(lab: ModuleType) -> None:
    """A state merged with that of no key, on either side, stays the same to the last bit."""
    none = lab.State(np.full(2, -INF), np.zeros(2), np.zeros((2, 3)))
    some = lab.State(
        np.array([-700.0, -INF]), np.array([1.25, 0]), np.array([[1.0, 2, 3], [0, 0, 0]])
    )
    with np.errstate(all="ignore"):
        for name, got, want in (
            ("some, none", lab.merge(some, none), some),
            ("none, some", lab.merge(none, some), some),
            ("none, none", lab.merge(none, none), none),
        ):
            assert support.same_bits(got, want), (
                f"merge({name}): m, l, acc are {[np.asarray(part).tolist() for part in got]}, they "
                f"should be {[part.tolist() for part in want]}. {NOTHING}"
            )


# ---- the proof -----------------------------------------------------------------------------------


def test_total_is_what_m_does_not_change(lab: ModuleType) -> None:
    """`total` gives the same two sums, whatever was subtracted from the scores."""
    for m, l_, acc in ((0, 6.0, [5.0, -1.0]), (3, 0.75, [0.625, -0.125]), (-2, 24.0, [20.0, -4.0])):
        state = lab.State(np.array([7.0, m]), np.array([1.0, l_]), np.array([[0.0, 0.0], acc]))
        got = lab.total(state, 1)
        want = (Fraction(6), [Fraction(5), Fraction(-1)])
        assert (got[0], list(got[1])) == want, (
            f"m = {m}, l = {l_}, acc = {acc}: 6 and ['5', '-1'], yours {got[0]} and "
            f"{[str(x) for x in got[1]]}"
        )
        assert isinstance(got[0], Fraction), f"an exact Fraction, not {type(got[0]).__name__}"
    for m in (-300, 2000):
        huge = lab.State(np.array([float(m)]), np.ones(1), np.ones((1, 1)))
        with np.errstate(all="ignore"):
            try:
                got_huge = lab.total(huge, 0)[0]
            except (OverflowError, ValueError) as error:
                got_huge = error
        assert got_huge == Fraction(2) ** m, (
            f"m = {m}, l = 1, acc = 1: not {got_huge!r:.60}. A fraction has no limit, a float has"
        )
    none = lab.State(np.array([-INF]), np.zeros(1), np.zeros((1, 2)))
    got = lab.total(none, 0)
    assert (got[0], list(got[1])) == (0, [0, 0]), f"a row without a key: 0 and [0, 0], yours {got}"


def test_merge_adds(lab: ModuleType) -> None:
    """total(merge(a, b)) is exactly total(a) + total(b), and total is that of the keys."""
    for seed in range(25):
        rng = np.random.default_rng(seed)
        scores, value = support.whole_numbers(rng, int(rng.integers(0, 20)))
        cut = int(rng.integers(0, len(scores) + 1))
        a = support.state_of(lab, scores[:cut], value[:cut])
        b = support.state_of(lab, scores[cut:], value[cut:])
        with np.errstate(all="ignore"):
            got, sum_a, sum_b = (lab.total(state, 0) for state in (lab.merge(a, b), a, b))
        want = support.exact_total(scores, value)
        assert (
            sum_a[0] + sum_b[0],
            [x + y for x, y in zip(sum_a[1], sum_b[1], strict=True)],
        ) == want, (
            f"draw {seed}: the totals of {cut} keys and of {len(scores) - cut} do not add up to that of "
            "all. `total` takes a state as it is"
        )
        assert (got[0], list(got[1])) == want, (
            f"draw {seed}: keys with scores {scores[:cut].tolist()} and {scores[cut:].tolist()}: the "
            f"totals are {sum_a[0]} and {sum_b[0]}, their merge has {got[0]}. Each side is rescaled to "
            "the larger maximum"
        )


def test_any_tree_gives_the_same_bits(lab: ModuleType) -> None:
    """With whole-numbered scores any partition, any order and any tree gives the same bits."""
    for seed in range(25):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 41))
        scores, value = support.whole_numbers(rng, n)
        want = support.state_of(lab, scores, value)
        part_of = rng.integers(0, int(rng.integers(1, 9)), n)
        parts = [support.state_of(lab, scores[part_of == p], value[part_of == p]) for p in range(8)]
        order = [parts[i] for i in rng.permutation(8)]
        with np.errstate(all="ignore"):
            got = support.any_tree(lab, rng, order)
        assert support.same_bits(got, want), (
            f"draw {seed}: {n} keys in parts of {[int((part_of == p).sum()) for p in range(8)]}, merged "
            f"in some order: {support.show(got)}; in one piece {support.show(want)}. No sum of these is "
            "ever rounded, so nothing may differ"
        )


def draw(seed: int) -> tuple[Any, ...]:
    """A query, keys and values; now and then scores of some ten thousand."""
    rng = np.random.default_rng(seed)
    n, rows = int(rng.integers(1, 60)), int(rng.integers(1, 5))
    query = rng.normal(size=(rows, 4)) * rng.choice([1, 10, 5000])
    return rng, query, *rng.normal(size=(2, n, 4))


def test_any_partition_is_attention(lab: ModuleType) -> None:
    """Keys dealt to parts at random, some parts empty, merge to attention along any tree (thirty draws)."""
    for seed in range(30):
        rng, query, key, value = draw(seed)
        want = support.dense(query, key, value, 0.8)
        part_of = rng.integers(0, int(rng.integers(1, 13)), len(key))
        with np.errstate(all="ignore"):
            parts = [
                lab.attend_partial(query, key[part_of == p], value[part_of == p], 0.8)
                for p in range(12)
            ]
            got = lab.finish(support.any_tree(lab, rng, parts))
        wrong = support.what_is_wrong(got, want)
        assert not wrong, (
            f"draw {seed}: {len(key)} keys in parts of {np.bincount(part_of, minlength=12).tolist()}: "
            f"{wrong}. In float64 the last places may differ, because sums are rounded; no more than that"
        )


# ---- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_splits", [1, 2, 3, 7, 16, 40])
def test_partitioned_is_attention(
    lab: ModuleType, num_splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of equal parts gives attention, each key in one part, even with more parts than keys."""
    sizes: list[int] = []
    right = lab.attend_partial

    def watched(query: Any, key: Any, value: Any, scale: float) -> Any:
        sizes.append(len(key))
        return right(query, key, value, scale)

    monkeypatch.setattr(lab, "attend_partial", watched)
    for n in (1, 13, 32):
        rng = np.random.default_rng(n)
        query, key, value = rng.normal(size=(3, 4)), *rng.normal(size=(2, n, 4))
        sizes.clear()
        with np.errstate(all="ignore"):
            got = lab.partitioned_attention(query, key, value, 0.5, num_splits)
        wrong = support.what_is_wrong(got, support.dense(query, key, value, 0.5))
        assert not wrong, f"{n} keys in {num_splits} parts of {sizes}: {wrong}"
        size = -(-n // num_splits)
        want = [max(0, min(size, n - i * size)) for i in range(num_splits)]
        assert sizes == want, f"{n} keys in {num_splits} parts: {want}, yours {sizes}"


# ---- the other form ------------------------------------------------------------------------------


def test_output_and_lse(lab: ModuleType) -> None:
    """`to_lse` gives the output, and the natural logarithm of the sum of all weights."""
    state = lab.State(
        np.array([3.0, -INF, 1e4]), np.array([1.5, 0, 1]), np.array([[6.0], [0], [2]])
    )
    with np.errstate(all="ignore"):
        out, lse = lab.to_lse(state)
    assert np.allclose(out, [[4], [0], [2]]), (
        f"the outputs are [[4], [0], [2]], yours {np.asarray(out).tolist()}"
    )
    want = [np.log(12), -INF, 1e4 * np.log(2)]
    assert np.allclose(lse, want, rtol=1e-13), (
        "m = [3, -inf, 10,000], l = [1.5, 0, 1]: the log-sum-exps are "
        f"{np.round(want, 4).tolist()}, yours {np.round(lse, 4).tolist()}"
    )


def test_from_output_and_lse(lab: ModuleType) -> None:
    """A state that went through `to_lse` and `from_lse` merges as before; -inf and +inf both mean no key."""
    rng = np.random.default_rng(0)
    a = lab.State(np.array([5.0, -2.0]), np.array([1.5, 3.0]), rng.normal(size=(2, 3)))
    b = lab.State(np.array([4.0, 9.0]), np.array([2.0, 1.0]), rng.normal(size=(2, 3)))
    want = lab.finish(lab.merge(a, b))
    again = lab.from_lse(a.acc / a.l[:, None], np.log(a.l) + a.m * np.log(2))
    wrong = support.what_is_wrong(np.asarray(lab.finish(lab.merge(again, b))), want)
    assert not wrong, (
        f"a state, made an output and a log-sum-exp and a state again, merges with another: {wrong}. "
        "The lse is natural, m counts in powers of two, and m and l together must come to the lse"
    )
    for none, name in (
        (-INF, "-inf, as FlashAttention 3 says it"),
        (INF, "+inf, as FlashAttention 2 says it"),
    ):
        with np.errstate(all="ignore"):
            state = lab.from_lse(np.array([[np.nan] * 3, [1.0] * 3]), np.array([none, 2.0]))
            got = lab.finish(lab.merge(state, b))
        assert np.allclose(got[0], b.acc[0] / b.l[0]), (
            f"row 0 has no key, which comes as {name}, with NaN as its output: merged with another part "
            f"it is that part, {np.round(b.acc[0] / b.l[0], 3).tolist()}; yours "
            f"{np.round(got[0], 3).tolist()}"
        )


# ---- when it pays --------------------------------------------------------------------------------


def test_segments(lab: ModuleType) -> None:
    """All segments have the same number of whole tiles, so some segments get none."""
    for arguments, want in (
        ((203, 16), (16, 13)), ((300, 16), (32, 10)), ((4096, 16), (256, 16)), ((4097, 16), (272, 16)),
        ((1, 16), (16, 1)), ((256, 16), (16, 16)), ((257, 16), (32, 9)), ((100, 32, 2), (64, 2)),
    ):  # fmt: skip
        got = tuple(lab.segments(*arguments))
        assert got == want, (
            f"seq_len, tile, segments = {arguments}: {want[0]} keys a segment, {want[1]} segments with "
            f"any, yours {got}"
        )


def test_busiest(lab: ModuleType) -> None:
    """Programs go in rounds, and a round is as long as a part."""
    for arguments, want in (
        ((1, 8, 4096, 1, 132), 4096), ((1, 8, 4096, 16, 132), 256), ((1, 8, 4096, 17, 132), 482),
        ((16, 8, 4096, 1, 132), 4096), ((16, 8, 4096, 16, 132), 4096), ((17, 8, 4096, 1, 132), 8192),
        ((3, 2, 203, 16, 108), 13), ((1, 1, 5, 9, 1), 9),
    ):  # fmt: skip
        got = lab.busiest(*arguments)
        part = -(-arguments[2] // arguments[3])
        rounds = "1 round" if want == part else f"{want // part} rounds"
        assert got == want, (
            f"sequences, KV heads, tokens, parts, multiprocessors = {arguments}: "
            f"{arguments[0] * arguments[1] * arguments[3]} programs, {rounds} of {part:,} keys, "
            f"so {want:,} for the busiest; yours {got:,}"
        )
