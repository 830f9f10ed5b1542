"""Lab 00-03: what each function of the sampler must do. The whole batch: test_lab_batch.py."""

from __future__ import annotations

import math
import warnings
from types import ModuleType
from typing import Any

import numpy as np

INF = math.inf


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def from_probs(*probs: list[float]) -> np.ndarray:
    """Logits whose softmax is `probs`, shifted so that only a real softmax gives them back."""
    with np.errstate(divide="ignore"):
        return (np.log(np.array(probs, np.float64)) + 3).astype(np.float32)


def kept(logits: np.ndarray) -> list[list[int]]:
    """The token ids of each row that may still be drawn."""
    return [np.flatnonzero(np.isfinite(row)).tolist() for row in logits]


def check_kept(before: np.ndarray, after: Any, want: list[list[int]], rule: str) -> None:
    """`after` bars exactly the tokens that are not in `want`, and leaves the other logits alone."""
    shape = after.shape if isinstance(after, np.ndarray) else type(after).__name__
    assert shape == before.shape, (
        f"return logits of the shape {before.shape} that came in, got {shape}"
    )
    assert kept(after) == want, f"{rule} Tokens left: {kept(after)}, should be {want}."
    for i, tokens in enumerate(want):
        assert after[i, tokens].tolist() == before[i, tokens].tolist(), (
            "a token that stays keeps its logit unchanged and its place: bar the others with -inf, "
            "do not return probabilities or sorted rows"
        )


def test_softmax_is_a_distribution(lab: ModuleType) -> None:
    """Each row of the softmax is exp(x) over the row's sum of exp(x), and a masked token gets exactly 0."""
    logits = rows([0.0, math.log(2), math.log(5)], [1.0, -INF, 1.0])
    probs = lab.softmax(logits)
    np.testing.assert_allclose(
        probs,
        [[0.125, 0.25, 0.625], [0.5, 0, 0.5]],
        rtol=1e-6,
        err_msg="softmax: exp of each logit over the sum of its own row (axis=1, keepdims=True)",
    )
    assert probs.dtype == np.float32, f"keep float32 throughout, the result is {probs.dtype}"


def test_softmax_survives_large_logits(lab: ModuleType) -> None:
    """Logits of 1000 and -1000 give finite probabilities, without a warning."""
    with warnings.catch_warnings(), np.errstate(over="ignore", invalid="ignore"):
        warnings.simplefilter("ignore")
        probs = lab.softmax(rows([1000, 1001, 999], [-1000, -1001, -1000]))
    assert np.isfinite(probs[0]).all(), (
        f"softmax of logits around 1000 gave {probs[0].tolist()}: exp(89) is already inf in float32, and "
        "inf / inf is NaN. Subtract the row's maximum before exp; the probabilities stay the same."
    )
    assert np.isfinite(probs[1]).all(), (
        f"beside a row around 1000, the row of logits around -1000 gave {probs[1].tolist()}: every exp of "
        "it is 0 in float32, and 0 / 0 is NaN. Subtract each row's own maximum (axis=1, keepdims=True), "
        "not the largest of the whole array."
    )
    e = math.e
    want = [1 / (1 + e + 1 / e), e / (1 + e + 1 / e), (1 / e) / (1 + e + 1 / e)]
    np.testing.assert_allclose(probs[0], want, rtol=1e-5, err_msg="softmax ignores a common shift")
    np.testing.assert_allclose(
        probs[1],
        [e / (2 * e + 1), 1 / (2 * e + 1), e / (2 * e + 1)],
        rtol=1e-5,
        err_msg="each row has its own maximum: reduce over axis=1 only",
    )


def test_what_comes_out_is_float32(lab: ModuleType) -> None:
    """Every step takes float32 and returns float32; token ids are int64."""
    logits, half = from_probs(*[[0.4, 0.3, 0.2, 0.1]] * 2), np.full(2, 0.5, np.float32)
    k = np.array([2, 3])
    for name, got in {
        "softmax": lab.softmax(logits),
        "compute_logprobs": lab.compute_logprobs(logits),
        "apply_temperature": lab.apply_temperature(logits, half),
        "apply_min_p": lab.apply_min_p(logits, half),
        "apply_top_k": lab.apply_top_k(logits, k),
        "apply_top_p": lab.apply_top_p(logits, half),
        "sampling_probs": lab.sampling_probs(logits, half, half, k, half),
    }.items():
        assert got.dtype == np.float32, (
            f"{name} was given float32 and returns {got.dtype}: twice the memory for every step after "
            "it. np.full, np.zeros and np.empty make float64 unless told otherwise (dtype=np.float32, "
            "or np.empty_like), and float32 with a float64 array becomes float64"
        )
    probs, rng = np.full((2, 4), 0.25, np.float32), np.random.default_rng(0)
    for name, got in {
        "greedy_sample": lab.greedy_sample(logits),
        "random_sample": lab.random_sample(probs, {}, rng),
    }.items():
        got_dtype = getattr(got, "dtype", type(got).__name__)
        assert got_dtype == np.int64, f"{name} returns token ids, an int64 array; got {got_dtype}"


def test_logprobs_of_unlikely_tokens_are_finite(lab: ModuleType) -> None:
    """compute_logprobs skips the softmax, so a token 200 below the top has about -200, not -inf."""
    with np.errstate(all="ignore"):
        alone = lab.compute_logprobs(rows([0, 200, 200]))
        got = lab.compute_logprobs(rows([0, 200, 200], [500, 500, 500], [1, 2, 3]))
    assert np.isfinite(got).all() or not np.isfinite(alone).all(), (
        "compute_logprobs is right for the row [0, 200, 200] alone, and not when a row of 500s stands "
        "beside it: take off each row's own maximum (axis=1, keepdims=True), not the largest of the "
        "whole batch, or a row far below the top one underflows"
    )
    assert np.isfinite(got).all(), (
        f"compute_logprobs gave {got.tolist()}: a probability of exp(-200) is 0 in float32 and its "
        "logarithm -inf. Subtract the maximum, then the logarithm of the sum of the exps."
    )
    total = math.log(math.e + math.e**2 + math.e**3)
    np.testing.assert_allclose(
        got,
        [
            [-200 - math.log(2), -math.log(2), -math.log(2)],
            [-math.log(3)] * 3,
            [1 - total, 2 - total, 3 - total],
        ],
        rtol=1e-5,
        err_msg="log probability = logit - log(sum(exp(logits))), the natural logarithm, row by row",
    )


def test_greedy_takes_the_largest_and_the_lowest_id_of_a_tie(lab: ModuleType) -> None:
    """greedy_sample takes the largest logit of each row, and the lowest id where several tie."""
    got = lab.greedy_sample(rows([0, 3, 1, 3], [-5, -7, -6, -9], [-INF, -INF, -2, -INF]))
    assert np.asarray(got).tolist() == [1, 0, 2], (
        f"greedy gave {np.asarray(got).tolist()}: take the argmax of each row. With a tie, the first "
        "of the largest wins, here as in vLLM; engines that break ties differently part company "
        "some hundred tokens later."
    )


def test_temperature_divides_the_logits(lab: ModuleType) -> None:
    """The temperature divides the logits, so below 1 it sharpens and above 1 it flattens the distribution."""
    logits = rows([2, 4, -1], [2, 4, -1], [2, 4, -1])
    got = lab.apply_temperature(logits, np.array([0.5, 1, 2], np.float32))
    np.testing.assert_array_equal(
        got,
        [[4, 8, -2], [2, 4, -1], [1, 2, -0.5]],
        err_msg="divide row i of the logits by temp[i]. Dividing probabilities instead scales all "
        "of a row alike, and the draw, which compares them, does not change at all.",
    )


def test_temperature_leaves_greedy_rows_finite(lab: ModuleType) -> None:
    """A greedy row (temperature below 1e-5) in a mixed batch is not divided by 0."""
    logits = rows(*[[2, 4, 0]] * 4)
    with np.errstate(all="ignore"):
        got = lab.apply_temperature(logits, np.array([0, 9e-6, 1e-5, 0.01], np.float32))
    np.testing.assert_allclose(
        got,
        [[2, 4, 0], [2, 4, 0], [2e5, 4e5, 0], [200, 400, 0]],
        rtol=1e-6,
        err_msg="rows with temp < SAMPLING_EPS (1e-5) are greedy: divide them by 1. 0 / 0 is NaN. "
        "1e-5 itself is not below the line.",
    )


def test_min_p_is_a_share_of_the_top_token(lab: ModuleType) -> None:
    """min_p masks tokens below its share of the row's largest probability; a token exactly there stays."""
    logits = from_probs([0.5, 0.3, 0.15, 0.05], [0.5, 0.3, 0.15, 0.05], [0.4, 0.4, 0.1, 0.1])
    got = lab.apply_min_p(logits, np.array([0.2, 0, 1], np.float32))
    check_kept(
        logits,
        got,
        [[0, 1, 2], [0, 1, 2, 3], [0, 1]],
        "min_p 0.2 bars below 0.2 * 0.5 = 0.1, not below 0.2; 0 bars nothing; 1 leaves what ties "
        "with the top token, as a token at the floor stays (bar with <, not <=).",
    )


def test_min_p_is_about_probabilities(lab: ModuleType) -> None:
    """The floor of min_p is a share of the row's largest probability, not of its largest logit
    or the batch's."""
    logits = from_probs([0.5, 0.3, 0.15, 0.05]) - np.float32(5)  # the same probabilities
    got = lab.apply_min_p(logits, np.array([0.2], np.float32))
    assert kept(got) == [[0, 1, 2]], (
        f"min_p 0.2 over the probabilities 0.5, 0.3, 0.15, 0.05, with every logit negative: tokens "
        f"{kept(got)[0]} are left, should be [0, 1, 2]. The floor is 0.2 times the largest probability; "
        "0.2 times a logit means nothing, since logits may be shifted by any constant"
    )
    logits = from_probs([0.9, 0.05, 0.05], [0.4, 0.35, 0.25])
    got = lab.apply_min_p(logits, np.array([0.5, 0.5], np.float32))
    assert kept(got) == [[0], [0, 1, 2]], (
        f"two rows whose largest probabilities are 0.9 and 0.4, min_p 0.5: tokens {kept(got)} are left, "
        "should be [[0], [0, 1, 2]]. Each row has a floor of its own, 0.45 and 0.2 (max over axis=1, "
        "keepdims=True), whoever stands beside it in the batch"
    )


def test_top_k_keeps_the_k_largest(lab: ModuleType) -> None:
    """top_k keeps the k largest logits of each row, and k = V keeps all."""
    logits = rows([1, 4, 2, 3], [1, 4, 2, 3], [1, 4, 2, 3], [1, 4, 2, 3])
    got = lab.apply_top_k(logits, np.array([1, 2, 3, 4]))
    check_kept(
        logits,
        got,
        [[1], [1, 3], [1, 2, 3], [0, 1, 2, 3]],
        "top_k keeps the k[i] largest logits of row i; every row has a k of its own.",
    )


def test_top_k_keeps_ties(lab: ModuleType) -> None:
    """Tokens that tie with the k-th largest stay, so top_k may keep more than k."""
    logits = rows([3, 5, 3, 3, 1], [2, 2, 2, 2, 2])
    got = lab.apply_top_k(logits, np.array([2, 1]))
    check_kept(
        logits,
        got,
        [[0, 1, 2, 3], [0, 1, 2, 3, 4]],
        "top_k bars what is below the k-th largest logit, and what ties with it is not below. "
        "Choosing k ids with argsort would throw some of the ties out by chance.",
    )


def test_top_k_steps_over_barred_tokens(lab: ModuleType) -> None:
    """top_k keeps all unmasked tokens, and only those, of a row that has fewer than k."""
    logits = rows([-INF, 1, -INF, 2, -INF])
    got = lab.apply_top_k(logits, np.array([3]))
    check_kept(logits, got, [[1, 3]], "a token barred earlier (logit -inf) never comes back.")


def test_top_p_keeps_the_token_that_crosses(lab: ModuleType) -> None:
    """The tokens that top_p keeps hold at least p: the token that crosses p is among them."""
    logits = from_probs(*[[0.1, 0.4, 0.2, 0.3]] * 4)
    got = lab.apply_top_p(logits, np.array([0.35, 0.5, 0.75, 0.95], np.float32))
    check_kept(
        logits,
        got,
        [[1], [1, 3], [1, 2, 3], [0, 1, 2, 3]],
        "top_p keeps the fewest likeliest tokens that hold at least p. For p = 0.5 over 0.4, 0.3, "
        "0.2, 0.1: 0.4 alone is too little, so 0.3, which crosses the line, stays too.",
    )


def test_top_p_stops_where_the_sum_is_exactly_p(lab: ModuleType) -> None:
    """Once the tokens that top_p keeps hold exactly p, the next token goes, even if it ties with the last."""
    logits = np.full((4, 4), 1.5, np.float32)
    got = lab.apply_top_p(logits, np.array([0.25, 0.5, 0.6, 1.0], np.float32))
    counts = [len(tokens) for tokens in kept(got)]
    assert counts == [1, 2, 3, 4], (
        f"four tokens of probability 0.25 each, p = 0.25, 0.5, 0.6, 1: {counts} tokens were left, "
        "should be [1, 2, 3, 4]. From the least likely up, a token goes while the sum, its own "
        "probability included, is <= 1 - p. top_k keeps ties, top_p does not."
    )


def test_top_p_never_bars_the_likeliest(lab: ModuleType) -> None:
    """top_p always keeps the likeliest token, however small p is."""
    logits = from_probs([0.2, 0.5, 0.3], [0.98, 0.01, 0.01])
    got = lab.apply_top_p(logits, np.array([1e-9, 1e-3], np.float32))
    check_kept(
        logits, got, [[1], [0]], "the likeliest token always stays: 1 - 1e-9 is 1 in float32."
    )


def test_top_p_is_a_share_of_what_is_left(lab: ModuleType) -> None:
    """top_p renormalises first, so tokens that an earlier step masked count for nothing."""
    logits = from_probs([0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1])
    logits[0, 2:] = -INF  # 0.4 and 0.3 become 4/7 and 3/7
    got = lab.apply_top_p(logits, np.array([0.5, 0.5], np.float32))
    check_kept(
        logits,
        got,
        [[0], [0, 1]],
        "top_p after top_k works on the softmax of what top_k has left: 4/7 alone holds p = 0.5.",
    )


def test_the_steps_come_in_vllms_order(lab: ModuleType) -> None:
    """sampling_probs applies temperature, min_p, top_k and top_p in this order, each to what the
    last one left."""
    f32 = np.float32
    logits = from_probs([0.4, 0.3, 0.2, 0.1])

    def left(temp: float, min_p: float | None, k: int | None, p: float | None) -> list[int]:
        probs = lab.sampling_probs(
            logits,
            np.array([temp], f32),
            None if min_p is None else np.array([min_p], f32),
            None if k is None else np.array([k]),
            None if p is None else np.array([p], f32),
        )
        assert abs(probs.sum() - 1) < 1e-5, (
            f"the probabilities of a row sum to {probs.sum()}, not 1: bar tokens with -inf and take "
            "the softmax last, so that those that are left share the whole"
        )
        return np.flatnonzero(probs[0]).tolist()

    assert left(1, None, None, None) == [0, 1, 2, 3], "None means that no row uses the step"
    assert left(1, 0.6, None, None) == [0, 1], "min_p is applied where it is given"
    assert left(1, None, 3, None) == [0, 1, 2], "top_k is applied where it is given"
    assert left(1, None, None, 0.6) == [0, 1], "top_p is applied where it is given"
    assert left(1, None, 2, 0.5) == [0], (
        "top_k before top_p: of 0.4 and 0.3, which top_k = 2 leaves, 0.4 holds 4/7, more than "
        "p = 0.5. The other way round both would stay."
    )
    assert left(1, 0.6, None, 0.5) == [0], "min_p before top_p, which sees what min_p has left"
    assert left(4, 0.6, None, None) == [0, 1, 2, 3], (
        "temperature before min_p: at T = 4 the probabilities lie so close together that none is "
        "below 0.6 of the top"
    )
    assert left(0.25, None, None, 0.7) == [0], (
        "temperature before top_p: at T = 0.25 the first token holds 0.72 alone"
    )
    probs = lab.sampling_probs(logits, np.array([0.5], f32), None, None, None)
    np.testing.assert_allclose(
        probs,
        [[16 / 30, 9 / 30, 4 / 30, 1 / 30]],
        rtol=1e-5,
        err_msg="T = 0.5 squares the probabilities and renormalises: 16, 9, 4 and 1 of 30",
    )
