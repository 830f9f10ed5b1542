"""The sampler's steps, each against a slow and obvious one."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from mini_vllm.sample import ops
from mini_vllm.sample.generator import TorchGenerator
from mini_vllm.sample.metadata import PenaltyState, SamplingMetadata
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from tests.engine.helpers.sampling.sampler_helpers import (
    INF,
    VOCAB,
    Row,
    random_logits,
    rows_of,
    slow_min_p,
    slow_penalties,
    slow_softmax,
    slow_top_k,
    slow_top_p,
)

# ---- the steps -----------------------------------------------------------------------------------


def test_softmax_and_logprobs() -> None:
    logits = random_logits(0, 5, scale=30)
    logits[0, 3] = -np.inf
    slow = np.array([slow_softmax(row) for row in logits.tolist()])
    np.testing.assert_allclose(ops.softmax(logits), slow, rtol=1e-5, atol=1e-12)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(ops.compute_logprobs(logits), np.log(slow), rtol=1e-5, atol=1e-5)
    assert ops.compute_logprobs(logits).dtype == ops.softmax(logits).dtype == np.float32


def test_softmax_of_a_row_that_bars_everything_is_nan_without_a_warning() -> None:
    logits = np.full((2, 4), -np.inf, np.float32)
    logits[1, 2] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probs = ops.softmax(logits)
    assert np.isnan(probs[0]).all()
    assert probs[1].tolist() == [0, 0, 1, 0]


def test_temperature_leaves_greedy_rows_finite() -> None:
    logits = random_logits(1, 3)
    temp = np.array([0.5, 0, 2], np.float32)
    got = ops.apply_temperature(logits, temp, all_random=False)
    np.testing.assert_array_equal(got, logits / np.array([[0.5], [1], [2]], np.float32))
    assert ops.apply_temperature(logits, temp, all_random=False).dtype == np.float32


@pytest.mark.parametrize("vocab", [1, 2, 24])
def test_top_k(vocab: int) -> None:
    logits = random_logits(2, 40, vocab)
    k = np.arange(40) % vocab + 1
    slow = [slow_top_k(row, int(n)) for row, n in zip(logits.tolist(), k, strict=True)]
    np.testing.assert_array_equal(ops.apply_top_k_only(logits, k), slow)
    np.testing.assert_array_equal(ops.apply_top_k_top_p(logits, k, None), slow)
    p = np.ones(40, np.float32)
    np.testing.assert_array_equal(ops.apply_top_k_top_p(logits, k, p), slow)


def test_top_k_keeps_what_ties_with_the_kth() -> None:
    logits = np.array([[5, 3, 3, 3, 1]], np.float32)
    got = ops.apply_top_k_only(logits, np.array([2]))
    assert got.tolist() == [[5, 3, 3, 3, -INF]], "the mask is strict: ties with the k-th stay"


def test_top_p() -> None:
    logits = random_logits(3, 200)
    p = np.random.default_rng(3).uniform(0.01, 1, 200).astype(np.float32)
    slow = [slow_top_p(row, float(q)) for row, q in zip(logits.tolist(), p, strict=True)]
    np.testing.assert_array_equal(ops.apply_top_k_top_p(logits, None, p), slow)


def test_top_p_at_the_boundary() -> None:
    even = np.zeros((1, 4), np.float32)  # four times 0.25, summed from the bottom up

    def kept(p: float, logits: np.ndarray = even) -> list[int]:
        out = ops.apply_top_k_top_p(logits, None, np.array([p], np.float32))
        return np.flatnonzero(np.isfinite(out[0])).tolist()

    assert kept(0.5) == [2, 3], "a sum equal to 1 - p goes; of equals, the lower ids go first"
    assert kept(0.51) == [1, 2, 3], "the token that crosses the line stays"
    assert kept(1.0) == [0, 1, 2, 3]
    assert kept(1e-9) == [3], "one token always stays"
    ten = np.zeros((1, 10), np.float32)
    assert len(kept(0.9, ten)) == 9, "1 - p is taken in float32, where 1 - 0.9 is not below 0.1"


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))
    k, p = np.array([2]), np.array([0.5], np.float32)
    got = ops.apply_top_k_top_p(logits, k, p)
    # Of the two left the first holds 4/7 > 0.5. Of the whole it holds 0.4: both would stay.
    assert np.isfinite(got[0]).tolist() == [True, False, False, False]


def test_top_k_and_top_p_with_ties_and_barred_tokens() -> None:
    rng = np.random.default_rng(4)
    logits = rng.integers(-2, 3, (300, VOCAB)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    k = rng.integers(1, VOCAB + 1, 300)
    p = rng.uniform(0.01, 1, 300).astype(np.float32)
    slow = [
        slow_top_p(slow_top_k(row, int(n)), float(q))
        for row, n, q in zip(logits.tolist(), k, p, strict=True)
    ]
    np.testing.assert_array_equal(ops.apply_top_k_top_p(logits, k, p), slow)


def test_nothing_asked_is_nothing_done() -> None:
    logits = random_logits(5, 2)
    assert ops.apply_top_k_top_p(logits, None, None) is logits


def test_min_p() -> None:
    logits = random_logits(6, 50)
    min_p = np.linspace(0, 1, 50).astype(np.float32)
    slow = [slow_min_p(row, float(q)) for row, q in zip(logits.tolist(), min_p, strict=True)]
    got = ops.apply_min_p(logits, min_p)
    np.testing.assert_array_equal(got, slow)
    assert np.isfinite(got[0]).all()
    assert np.isfinite(got[-1]).sum() == 1, "min_p=1 leaves the likeliest token"


def test_counts() -> None:
    tokens = [[1, 1, 3], [], [23, 0, 23, 23]]
    counts, mask = ops.get_token_bin_counts_and_mask(tokens, VOCAB)
    slow = [[ids.count(t) for t in range(VOCAB)] for ids in tokens]
    np.testing.assert_array_equal(counts, slow)
    np.testing.assert_array_equal(mask, np.array(slow) > 0)
    assert ops.get_token_bin_counts_and_mask([], VOCAB)[0].shape == (0, VOCAB)
    for bad in (-1, VOCAB):
        with pytest.raises(ValueError, match=rf"0 to 23, got {min(bad, 1)} to {max(bad, 1)}"):
            ops.get_token_bin_counts_and_mask([[1], [bad]], VOCAB)


def test_penalties() -> None:
    rng = np.random.default_rng(7)
    rows = [
        Row(
            SamplingParams(
                repetition_penalty=rng.uniform(0.5, 2),
                presence_penalty=rng.uniform(-2, 2),
                frequency_penalty=rng.uniform(-2, 2),
            ),
            rng.integers(0, VOCAB, 6).tolist(),
            rng.integers(0, VOCAB, int(n)).tolist(),
        )
        for n in rng.integers(0, 20, 30)
    ]
    logits = random_logits(7, len(rows))
    slow = [slow_penalties(x, row) for x, row in zip(logits.tolist(), rows, strict=True)]
    got = PenaltyState(rows, list(range(len(rows))), VOCAB).apply(logits)
    np.testing.assert_allclose(got, slow, rtol=1e-5, atol=1e-5)
    assert got.dtype == np.float32


def test_repetition_penalty_makes_both_signs_less_likely() -> None:
    logits = np.array([[2.0, -2.0, 2.0]], np.float32)
    seen, none = np.array([[True, True, False]]), np.zeros((1, 3), np.float32)
    zero, two = np.zeros(1, np.float32), np.full(1, 2, np.float32)
    assert ops.apply_penalties(logits, seen, none, zero, zero, two).tolist() == [[1.0, -4.0, 2.0]]


@pytest.mark.parametrize("num_logprobs", [0, 1, 5, VOCAB - 1, VOCAB])
def test_gather_logprobs(num_logprobs: int) -> None:
    rng = np.random.default_rng(8)
    logits = rng.integers(-3, 4, (30, VOCAB)).astype(np.float32)  # with ties
    logprobs = ops.compute_logprobs(logits)
    token_ids = rng.integers(0, VOCAB, 30)
    got = ops.gather_logprobs(logprobs, num_logprobs, token_ids)
    assert got.logprob_token_ids.shape == got.logprobs.shape == (30, num_logprobs + 1)
    for i, token in enumerate(token_ids):
        ids, values = got.logprob_token_ids[i], got.logprobs[i]
        assert ids[0] == token
        np.testing.assert_array_equal(values, logprobs[i, ids])
        best = sorted(logprobs[i].tolist(), reverse=True)
        assert values[1:].tolist() == best[:num_logprobs], "the likeliest, best first"
        assert len(set(ids[1:].tolist())) == num_logprobs, "a token stands twice"
        assert got.sampled_token_ranks[i] == sum(x >= logprobs[i, token] for x in logprobs[i])


def test_ties_in_the_top_logprobs_come_lowest_id_first() -> None:
    got = ops.gather_logprobs(np.zeros((1, 4), np.float32), 4, np.array([2]))
    assert got.logprob_token_ids.tolist() == [[2, 0, 1, 2, 3]]
    assert got.sampled_token_ranks.tolist() == [4]
    for seed in range(20):  # part of the vocabulary: half of it ties at the top
        top = np.sort(np.random.default_rng(seed).choice(200, 100, replace=False))
        logprobs = np.full((1, 200), -9, np.float32)
        logprobs[0, top] = -1
        ids = ops.gather_logprobs(logprobs, 100, np.array([0])).logprob_token_ids
        assert ids[0, 1:].tolist() == top.tolist()


def test_the_inputs_stay_as_they_are() -> None:
    logits = random_logits(9, 4)
    before = logits.copy()
    half, k = np.full(4, 0.5, np.float32), np.full(4, 3)
    ops.apply_temperature(logits, half, True)
    ops.apply_min_p(logits, half)
    ops.apply_top_k_top_p(logits, k, None)
    ops.apply_top_k_top_p(logits, k, half)
    ops.apply_logit_bias(logits, k, k, half)
    ops.apply_min_tokens(logits, np.arange(4), k)
    probs = ops.softmax(logits)
    probs_before = probs.copy()
    ops.random_sample(probs, {}, TorchGenerator(0))
    params = SamplingParams(temperature=0.5, top_k=3, logit_bias={1: 5}, repetition_penalty=2)
    Sampler()(logits, SamplingMetadata.build(rows_of(*[params] * 4), VOCAB))
    np.testing.assert_array_equal(logits, before)
    np.testing.assert_array_equal(probs, probs_before)
    assert k.tolist() == [3] * 4


# ---- numbers that float32 does not have ----------------------------------------------------------


def test_a_temperature_beyond_float32_draws_from_all_tokens_alike_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = [
            Row(SamplingParams(temperature=1e300, seed=0)),
            Row(SamplingParams(temperature=1.0)),
        ]
        metadata = SamplingMetadata.build(rows, VOCAB)
        assert metadata.temperature is not None
        assert metadata.temperature.tolist() == [INF, 1.0]
        logits = ops.apply_temperature(random_logits(0, 2), metadata.temperature, all_random=True)
    assert np.ptp(ops.softmax(logits)[0]) == 0


@pytest.mark.parametrize("penalty", [1e300, 1e-300])
def test_a_penalty_beyond_float32_is_no_warning(penalty: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = [Row(SamplingParams(repetition_penalty=penalty), [1, 2], [3])]
        Sampler()(random_logits(0, 1), SamplingMetadata.build(rows, VOCAB))
