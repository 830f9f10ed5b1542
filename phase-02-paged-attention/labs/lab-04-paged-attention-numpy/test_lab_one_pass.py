"""Lab 02-04: the softmax that never sees all of its scores."""

from __future__ import annotations

import tracemalloc
from types import ModuleType

import numpy as np
import pytest

from course.learner.labs import load_support

support = load_support(__file__)


def test_a_running_denominator(lab: ModuleType) -> None:
    """The running state is right after each piece of the scores log 1, log 2 and log 4."""
    state = lab.OnlineSoftmax(1, 2)
    values = np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[4.0, 4.0]]])
    state.add(np.log([[1.0, 2.0]]), values[:2])
    assert np.allclose([state.maximum, state.denominator], [[np.log(2)], [1.5]], rtol=1e-12), (
        f"after log 1 and log 2 the maximum is log 2 and the denominator 1/2 + 2/2 = 1.5; yours "
        f"{state.maximum[0]:.4f} and {state.denominator[0]:.4f}"
    )
    first, second = (np.array(state.output()) for _ in range(2))
    assert np.allclose(first, [[1 / 3, 2 / 3]], rtol=1e-12), (
        f"weights 1/3 and 2/3 of (1, 0) and (0, 1) are (1/3, 2/3), yours {first}"
    )
    assert np.allclose(first, second, rtol=1e-12), (
        f"the mean was asked for twice, and is {first} and then {second}: `output` reads the state and must "
        "leave it as it is, because more pieces may come"
    )
    state.add(np.log([[4.0]]), values[2:])
    assert np.allclose([state.maximum, state.denominator], [[np.log(4)], [1.75]], rtol=1e-12), (
        f"then log 4 comes: the old sum was taken with a maximum of log 2, so it counts 2/4 now, and "
        f"1.5 / 2 + 4/4 = 1.75; yours {state.denominator[0]:.4f}, maximum {state.maximum[0]:.4f}"
    )
    got = state.output()
    assert np.allclose(got, [[17 / 7, 18 / 7]], rtol=1e-12), (
        f"weights 1/7, 2/7 and 4/7 of (1, 0), (0, 1) and (4, 4) are (17/7, 18/7), (2.43, 2.57); yours {got}. "
        "What was added up under the old maximum is rescaled as the denominator is"
    )


def test_the_maximum_may_come_first_or_last(lab: ModuleType) -> None:
    """Scores may rise or fall, pieces may have any size, and each head has its own maximum."""
    rng = np.random.default_rng(2)
    value = rng.normal(size=(9, 3, 4))
    scores = np.stack([np.linspace(-800, 900, 9), np.linspace(700, -600, 9), rng.normal(size=9)])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    want = np.einsum("hk,khd->hd", weights / weights.sum(axis=1, keepdims=True), value)
    for sizes in ([9], [1] * 9, [2, 3, 4], [8, 1]):
        state, ends = lab.OnlineSoftmax(3, 4), np.cumsum(sizes)
        for end, size in zip(ends, sizes, strict=True):
            state.add(scores[:, end - size : end], value[end - size : end])
        support.expect_close(
            state.output(),
            want,
            f"9 scores from -800 to 900 in pieces of {sizes}",
            "exp overflows past 709: the running maximum comes off every score, and it never falls",
        )


def test_hidden_scores_weigh_nothing(lab: ModuleType) -> None:
    """A key with a score of minus infinity gets no weight."""
    value = np.arange(12.0).reshape(3, 1, 4)
    state = lab.OnlineSoftmax(1, 4)
    state.add(np.array([[0.5, -np.inf]]), value[:2])
    state.add(np.array([[-np.inf]]), value[2:])
    support.expect_close(
        state.output(),
        value[0],
        "scores 0.5, -inf and -inf: all weight on the first",
        "-inf minus -inf is NaN: the maximum to take off is the running one, which is 0.5",
    )


CASES = {
    "one token": ([1], {}),
    "ragged": ([1, 4, 5, 11, 30], {}),
    "one KV head for seven": ([7, 10], {"num_kv_heads": 1, "group": 7}),
    "three query heads a KV head": ([9], {"num_kv_heads": 2, "group": 3}),
    "blocks of 1": ([3, 6], {"block_size": 1}),
    "heads first in memory": ([9, 3], {"layout": "heads first"}),
    "loud": ([9, 12], {"loud": 300.0}),
}


@pytest.mark.parametrize("name", CASES)
def test_one_pass_is_two_passes(lab: ModuleType, name: str) -> None:
    """Attention block by block equals dense attention to 1e-12, with NaN in every unused slot."""
    lens, options = CASES[name]
    case = support.make_case(8, lens, **options)
    got = lab.paged_decode_one_pass(*case.arguments)
    want = [
        support.dense(q[None], k, v)[0]
        for q, k, v in zip(case.query, case.keys, case.values, strict=True)
    ]
    if_nan = support.POISON
    if name == "loud":
        if_nan = f"Scores are in the hundreds here, so exp may have overflowed. Or: {if_nan}"
    support.expect_close(got, np.stack(want), f"{name}, lengths {lens}", if_nan)
    *arguments, scale = case.arguments
    arguments[0] = arguments[0] / 3
    got = lab.paged_decode_one_pass(*arguments, 3 * scale)
    support.expect_close(
        got,
        np.stack(want),
        f"{name}, lengths {lens}, a third of the query and 3 times the scale",
        if_nan,
    )


def test_one_block_at_a_time(lab: ModuleType) -> None:
    """1,024 tokens are read block by block; at no time are they all copied."""
    case = support.make_case(9, [1024], block_size=16, head_size=16)
    lab.paged_decode_one_pass(*case.arguments)
    tracemalloc.start()
    try:
        lab.paged_decode_one_pass(*case.arguments)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    gathered = case.keys[0].nbytes
    assert peak < gathered / 4, (
        f"the request's K is {gathered:,} bytes, and yours had {peak:,} in memory at once beside the cache. "
        "One block of K and V, its scores and the running state are all that is needed"
    )
