"""`OnlineAttention` and the state that goes along: what `mini_vllm/attention/online.py` promises, by name."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.attention import OnlineAttention, PagedAttention, online
from mini_vllm.attention.online import State, empty, finish, merge, update
from mini_vllm.engine.parts import EngineParts
from tests.engine.helpers.models.model_helpers import make_step
from tests.engine.helpers.thorough import either

D = 3
"""Numbers a value has in the tests of states."""
LOUD = st.floats(-1e4, 1e4, allow_nan=False)


@st.composite
def keys(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Scores `[rows, n]`, -inf among them, and values `[n, D]`, float64; n may be 0."""
    rows, n = draw(st.integers(1, 3)), draw(st.integers(0, 24))
    score = st.one_of(LOUD, st.floats(-2, 2), st.just(-np.inf))
    scores = draw(st.lists(score, min_size=rows * n, max_size=rows * n))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    return np.array(scores).reshape(rows, n), rng.standard_normal((n, D))


def state_of(scores: np.ndarray, value: np.ndarray) -> State:
    """All keys in one tile."""
    return update(empty(scores.shape[:-1], D, np.float64), scores, value)


def whole_softmax(scores: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Row by row, and 0 for a row that sees nothing."""
    out = np.zeros((len(scores), D))
    for row, of_row in enumerate(scores):
        if np.isfinite(of_row).any():
            weights = np.exp(of_row - of_row.max())
            out[row] = weights @ value / weights.sum()
    return out


def assert_same(actual: State, expected: State) -> None:
    """Equal maxima, and sums to the rounding of some dozens of additions."""
    np.testing.assert_array_equal(actual.m, expected.m)
    np.testing.assert_allclose(actual.l, expected.l, rtol=1e-13, atol=0)
    # A sum of values may cancel, so it is held against what was added up.
    np.testing.assert_allclose(actual.acc, expected.acc, rtol=0, atol=1e-12)


DRAWS = settings(max_examples=either(15, 200))


@DRAWS
@given(keys(), st.data())
def test_any_order(drawn: tuple[np.ndarray, np.ndarray], data: st.DataObject) -> None:
    """any-order: keys in any partition, the parts in any order, their states merged along any tree."""
    scores, value = drawn
    n = len(value)
    expected = state_of(scores, value)
    part_of = np.array(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), int)
    states = [state_of(scores[:, part_of == part], value[part_of == part]) for part in range(6)]
    states = data.draw(st.permutations(states))
    tree = list(states)
    while len(tree) > 1:  # any two neighbours, until one is left: every tree there is
        at = data.draw(st.integers(0, len(tree) - 2))
        tree[at : at + 2] = [merge(tree[at], tree[at + 1])]
    with np.errstate(all="raise", under="ignore"):
        assert_same(tree[0], expected)
        assert_same(reduce(merge, states), expected)
        assert_same(merge(states[0], states[1]), merge(states[1], states[0]))
        one_by_one = empty(scores.shape[:-1], D, np.float64)
        for key in data.draw(st.permutations(range(n))):
            one_by_one = update(one_by_one, scores[:, [key]], value[[key]])
        assert_same(one_by_one, expected)
        np.testing.assert_allclose(finish(tree[0]), whole_softmax(scores, value), atol=1e-12)


@DRAWS
@given(keys())
def test_nothing_seen(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    """nothing-seen: neutral on both sides, 0 at the end, and hidden keys are as good as none."""
    scores, value = drawn
    state, none = state_of(scores, value), empty(scores.shape[:-1], D, np.float64)
    with np.errstate(all="raise", under="ignore"):
        for same in (merge(state, none), merge(none, state)):
            for got, want in zip(same, state, strict=True):
                np.testing.assert_array_equal(got, want)
        hidden = update(none, np.full_like(scores, -np.inf), value)
        for got, want in zip(hidden, none, strict=True):
            np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(finish(hidden), 0.0)
        # All hidden first, and then what there is: far below zero as well.
        late = update(hidden, scores - 1e4, value)
        np.testing.assert_allclose(finish(late), whole_softmax(scores - 1e4, value), atol=1e-12)


@DRAWS
@given(keys(), st.integers(1, 7))
def test_no_overflow(drawn: tuple[np.ndarray, np.ndarray], tile: int) -> None:
    """no-overflow: no warning at any score, and `1 <= l <= n` after n keys that a row has seen."""
    scores, value = drawn
    state = empty(scores.shape[:-1], D, np.float64)
    with np.errstate(all="raise", under="ignore"):
        for first in range(0, len(value), tile):
            state = update(state, scores[:, first : first + tile], value[first : first + tile])
            seen = np.isfinite(scores[:, : first + tile]).sum(axis=1)
            np.testing.assert_array_equal(state.l == 0, seen == 0)
            assert (state.l[seen > 0] >= 1).all()
            assert (state.l <= seen * (1 + 1e-14)).all()


def test_a_state_is_not_changed_by_what_is_made_of_it() -> None:
    """The neutral state is shared by many, so nothing may be added into it."""
    none = empty((2,), D)
    state = update(none, np.zeros((2, 1), np.float32), np.ones((1, D), np.float32))
    merge(state, state), finish(state), update(state, np.ones((2, 1)), np.ones((1, D)))
    np.testing.assert_array_equal(none.l, 0)
    np.testing.assert_array_equal(state.l, 1)
    np.testing.assert_array_equal(state.acc, 1)
    assert state.m.dtype == state.l.dtype == state.acc.dtype == np.float32


@st.composite
def batches(draw: st.DrawFn) -> tuple[Any, OnlineAttention]:
    """A step with decodes, chunks and whole prompts in a poisoned cache, and a backend with its tiles."""
    seq_lens = draw(st.lists(st.integers(1, 50), min_size=1, max_size=5))
    query_lens = [draw(st.one_of(st.just(1), st.integers(1, n))) for n in seq_lens]
    step = make_step(
        np.random.default_rng(draw(st.integers(0, 2**16))),
        seq_lens,
        query_lens,
        block_size=draw(st.sampled_from([1, 3, 4, 16])),
        num_kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 4)),
        canary=draw(st.sampled_from([np.nan, np.inf, 3e38, 7.0])),
        scale=draw(st.sampled_from([1.0, 6.0])),
    )
    return step, OnlineAttention(draw(st.sampled_from([1, 5, 16, 64])), draw(st.integers(1, 9)))


@DRAWS
@given(batches())
def test_it_is_paged_attention(drawn: tuple[Any, OnlineAttention]) -> None:
    """Tile by tile or all at once: the same numbers, and no slot that is nobody's is read."""
    step, backend = drawn
    expected = step.run(PagedAttention())
    got = step.run(backend)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-5 * np.abs(expected).max())


def test_one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """one-tile: no update is given more scores than a tile of keys and a tile of queries make."""
    sizes: list[int] = []

    def watched(state: State, scores: np.ndarray, value: np.ndarray) -> State:
        sizes.append(scores.size)
        return update(state, scores, value)

    monkeypatch.setattr(online, "update", watched)
    step = make_step(np.random.default_rng(0), [70, 41], [70, 1])
    step.run(OnlineAttention(tile=8, query_tile=5))
    num_heads = step.query.shape[1]
    assert max(sizes) == num_heads * 5 * 8
    # 14 query tiles end at positions 4, 9 … 69, and one decode at 40.
    assert len(sizes) == sum(last // 8 + 1 for last in [*range(4, 70, 5), 40])


def test_causal_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """causal-bounds: full tiles come without a -inf, the last ones with some, and none past them."""
    hidden: list[int] = []

    def watched(state: State, scores: np.ndarray, value: np.ndarray) -> State:
        hidden.append(int(np.isneginf(scores[0]).sum()))
        return update(state, scores, value)

    monkeypatch.setattr(online, "update", watched)
    step = make_step(np.random.default_rng(0), [22], [6], group=2)  # positions 16 to 21
    step.run(OnlineAttention(tile=4, query_tile=4))
    # Positions 16 to 19 see four full tiles and the diagonal; 20 and 21 five and two keys of the sixth.
    assert hidden == [0, 0, 0, 0, 2 * (3 + 2 + 1), 0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize("bad", [{"tile": 0}, {"tile": -3}, {"query_tile": 0}])
def test_tiles_have_a_key_at_least(bad: dict[str, int]) -> None:
    [(name, size)] = bad.items()
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got {size}"):
        OnlineAttention(**bad)


def test_the_engine_says_the_same() -> None:
    """Greedy tokens of the shipped model, prompts in chunks: the default attention's, one by one."""
    prompts = ["The scheduler", "A block table", "Prefix caching " * 9]
    tokens = []
    for attention in (EngineParts().attention, lambda: OnlineAttention(tile=24, query_tile=10)):
        config = EngineConfig(max_num_batched_tokens=16, max_num_seqs=4)
        engine = LLMEngine(config=config, parts=EngineParts(attention=attention))
        for number, prompt in enumerate(prompts):
            params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
            engine.add_request(str(number), prompt, params)
        said: dict[str, list[int]] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                said[output.request_id] = list(output.outputs[0].token_ids)
        tokens.append(said)
    assert tokens[0] == tokens[1]
    assert [len(said) for said in tokens[0].values()] == [24] * 3
