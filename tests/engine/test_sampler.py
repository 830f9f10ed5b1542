"""The sampler: each step against a slow and obvious one, the whole against the steps, then vLLM."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mini_vllm import sampler as S
from mini_vllm.sampling_params import SamplingParams

VOCAB = 24
INF = math.inf
# The chi-square statistic exceeds these in one run of a thousand, by degrees of freedom.
CHI_SQUARE_0_001 = {2: 13.816, 3: 16.266, 4: 18.467, 7: 24.322}


@dataclass
class Row:
    """A request that samples."""

    sampling_params: SamplingParams
    prompt_token_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    output_token_ids: list[int] = field(default_factory=list)
    generator: np.random.Generator | None = None

    def __post_init__(self) -> None:
        self.generator = S.make_generator(self.sampling_params)


def rows_of(*params: SamplingParams) -> list[Row]:
    return [Row(p) for p in params]


def random_logits(seed: int, n: int, vocab: int = VOCAB, scale: float = 3.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, vocab)) * scale).astype(np.float32)


# ---- slow and obvious: one row, Python floats ----------------------------------------------------


def slow_softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / sum(weights) for w in weights]


def slow_top_k(logits: list[float], k: int) -> list[float]:
    kth = sorted(logits, reverse=True)[min(k, len(logits)) - 1]
    return [x if x >= kth else -INF for x in logits]


def slow_top_p(logits: list[float], p: float) -> list[float]:
    probs = slow_softmax(logits)
    allowed = list(logits)
    mass = 0.0
    order = sorted(range(len(logits)), key=lambda t: logits[t])
    for token in order[:-1]:  # the likeliest always stays
        mass += probs[token]
        # In float32 as at the pin: 1 - 0.9 is 0.1 there, and not a little less.
        if np.float32(mass) <= np.float32(1) - np.float32(p):
            allowed[token] = -INF
    return allowed


def slow_min_p(logits: list[float], min_p: float) -> list[float]:
    probs = slow_softmax(logits)
    floor = min_p * max(probs)
    return [x if q >= floor else -INF for x, q in zip(logits, probs, strict=True)]


def slow_penalties(logits: list[float], row: Row) -> list[float]:
    p, out = row.sampling_params, []
    for token, logit in enumerate(logits):
        count = row.output_token_ids.count(token)
        if count or token in row.prompt_token_ids:
            positive = logit > 0
            logit = logit / p.repetition_penalty if positive else logit * p.repetition_penalty
        if count:
            logit -= p.frequency_penalty * count + p.presence_penalty
        out.append(logit)
    return out


def slow_processors(logits: list[float], row: Row) -> list[float]:
    """What can change the argmax, in vLLM's order."""
    p = row.sampling_params
    if p.allowed_token_ids:
        logits = [x if t in p.allowed_token_ids else -INF for t, x in enumerate(logits)]
    if len(row.output_token_ids) < p.min_tokens:
        logits = [-INF if t in p.all_stop_token_ids else x for t, x in enumerate(logits)]
    logits = [x + (p.logit_bias or {}).get(t, 0.0) for t, x in enumerate(logits)]
    return slow_penalties(logits, row)


def slow_allowed(logits: list[float], row: Row) -> list[float]:
    """The distribution a row's token is drawn from."""
    p = row.sampling_params
    logits = [x / p.temperature for x in slow_processors(logits, row)]
    logits = slow_min_p(logits, p.min_p)
    logits = slow_top_k(logits, p.top_k) if p.top_k > 0 else logits
    return slow_softmax(slow_top_p(logits, p.top_p))


# ---- the steps -----------------------------------------------------------------------------------


def test_softmax_and_logprobs() -> None:
    logits = random_logits(0, 5, scale=30)
    logits[0, 3] = -np.inf
    slow = np.array([slow_softmax(row) for row in logits.tolist()])
    np.testing.assert_allclose(S.softmax(logits), slow, rtol=1e-5, atol=1e-12)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(S.compute_logprobs(logits), np.log(slow), rtol=1e-5, atol=1e-5)
    assert S.compute_logprobs(logits).dtype == S.softmax(logits).dtype == np.float32


def test_softmax_of_a_row_that_bars_everything_is_nan_without_a_warning() -> None:
    logits = np.full((2, 4), -np.inf, np.float32)
    logits[1, 2] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probs = S.softmax(logits)
    assert np.isnan(probs[0]).all()
    assert probs[1].tolist() == [0, 0, 1, 0]


def test_temperature_leaves_greedy_rows_finite() -> None:
    logits = random_logits(1, 3)
    temp = np.array([0.5, 0, 2], np.float32)
    got = S.apply_temperature(logits, temp, all_random=False)
    np.testing.assert_array_equal(got, logits / np.array([[0.5], [1], [2]], np.float32))
    assert S.apply_temperature(logits, temp, all_random=False).dtype == np.float32


@pytest.mark.parametrize("vocab", [1, 2, 24])
def test_top_k(vocab: int) -> None:
    logits = random_logits(2, 40, vocab)
    k = np.arange(40) % vocab + 1
    slow = [slow_top_k(row, int(n)) for row, n in zip(logits.tolist(), k, strict=True)]
    np.testing.assert_array_equal(S.apply_top_k_only(logits, k), slow)
    np.testing.assert_array_equal(S.apply_top_k_top_p(logits, k, None), slow)
    p = np.ones(40, np.float32)
    np.testing.assert_array_equal(S.apply_top_k_top_p(logits, k, p), slow)


def test_top_k_keeps_what_ties_with_the_kth() -> None:
    logits = np.array([[5, 3, 3, 3, 1]], np.float32)
    got = S.apply_top_k_only(logits, np.array([2]))
    assert got.tolist() == [[5, 3, 3, 3, -INF]], "the mask is strict: ties with the k-th stay"


def test_top_p() -> None:
    logits = random_logits(3, 200)
    p = np.random.default_rng(3).uniform(0.01, 1, 200).astype(np.float32)
    slow = [slow_top_p(row, float(q)) for row, q in zip(logits.tolist(), p, strict=True)]
    np.testing.assert_array_equal(S.apply_top_k_top_p(logits, None, p), slow)


def test_top_p_at_the_boundary() -> None:
    even = np.zeros((1, 4), np.float32)  # four times 0.25, summed from the bottom up

    def kept(p: float, logits: np.ndarray = even) -> list[int]:
        out = S.apply_top_k_top_p(logits, None, np.array([p], np.float32))
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
    got = S.apply_top_k_top_p(logits, k, p)
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
    np.testing.assert_array_equal(S.apply_top_k_top_p(logits, k, p), slow)


def test_nothing_asked_is_nothing_done() -> None:
    logits = random_logits(5, 2)
    assert S.apply_top_k_top_p(logits, None, None) is logits


def test_min_p() -> None:
    logits = random_logits(6, 50)
    min_p = np.linspace(0, 1, 50).astype(np.float32)
    slow = [slow_min_p(row, float(q)) for row, q in zip(logits.tolist(), min_p, strict=True)]
    got = S.apply_min_p(logits, min_p)
    np.testing.assert_array_equal(got, slow)
    assert np.isfinite(got[0]).all()
    assert np.isfinite(got[-1]).sum() == 1, "min_p=1 leaves the likeliest token"


def test_counts() -> None:
    tokens = [[1, 1, 3], [], [23, 0, 23, 23]]
    counts, mask = S.get_token_bin_counts_and_mask(tokens, VOCAB)
    slow = [[ids.count(t) for t in range(VOCAB)] for ids in tokens]
    np.testing.assert_array_equal(counts, slow)
    np.testing.assert_array_equal(mask, np.array(slow) > 0)
    assert S.get_token_bin_counts_and_mask([], VOCAB)[0].shape == (0, VOCAB)
    for bad in (-1, VOCAB):
        with pytest.raises(ValueError, match=rf"0 to 23, got {min(bad, 1)} to {max(bad, 1)}"):
            S.get_token_bin_counts_and_mask([[1], [bad]], VOCAB)


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
    got = S.PenaltyState(rows, list(range(len(rows))), VOCAB).apply(logits)
    np.testing.assert_allclose(got, slow, rtol=1e-5, atol=1e-5)
    assert got.dtype == np.float32


def test_repetition_penalty_makes_both_signs_less_likely() -> None:
    logits = np.array([[2.0, -2.0, 2.0]], np.float32)
    seen, none = np.array([[True, True, False]]), np.zeros((1, 3), np.float32)
    zero, two = np.zeros(1, np.float32), np.full(1, 2, np.float32)
    assert S.apply_penalties(logits, seen, none, zero, zero, two).tolist() == [[1.0, -4.0, 2.0]]


@pytest.mark.parametrize("num_logprobs", [0, 1, 5, VOCAB - 1, VOCAB])
def test_gather_logprobs(num_logprobs: int) -> None:
    rng = np.random.default_rng(8)
    logits = rng.integers(-3, 4, (30, VOCAB)).astype(np.float32)  # with ties
    logprobs = S.compute_logprobs(logits)
    token_ids = rng.integers(0, VOCAB, 30)
    got = S.gather_logprobs(logprobs, num_logprobs, token_ids)
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
    got = S.gather_logprobs(np.zeros((1, 4), np.float32), 4, np.array([2]))
    assert got.logprob_token_ids.tolist() == [[2, 0, 1, 2, 3]]
    assert got.sampled_token_ranks.tolist() == [4]
    for seed in range(20):  # part of the vocabulary: half of it ties at the top
        top = np.sort(np.random.default_rng(seed).choice(200, 100, replace=False))
        logprobs = np.full((1, 200), -9, np.float32)
        logprobs[0, top] = -1
        ids = S.gather_logprobs(logprobs, 100, np.array([0])).logprob_token_ids
        assert ids[0, 1:].tolist() == top.tolist()


def test_the_inputs_stay_as_they_are() -> None:
    logits = random_logits(9, 4)
    before = logits.copy()
    half, k = np.full(4, 0.5, np.float32), np.full(4, 3)
    S.apply_temperature(logits, half, True)
    S.apply_min_p(logits, half)
    S.apply_top_k_top_p(logits, k, None)
    S.apply_top_k_top_p(logits, k, half)
    S.apply_logit_bias(logits, k, k, half)
    S.apply_min_tokens(logits, np.arange(4), k)
    probs = S.softmax(logits)
    probs_before = probs.copy()
    S.random_sample(probs, {}, np.random.default_rng(0))
    params = SamplingParams(temperature=0.5, top_k=3, logit_bias={1: 5}, repetition_penalty=2)
    S.Sampler()(logits, S.SamplingMetadata.build(rows_of(*[params] * 4), VOCAB))
    np.testing.assert_array_equal(logits, before)
    np.testing.assert_array_equal(probs, probs_before)
    assert k.tolist() == [3] * 4


# ---- the draw ------------------------------------------------------------------------------------


def chi_square(drawn: np.ndarray, probs: list[float]) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom, over the tokens that can occur."""
    expected = np.array(probs) * len(drawn)
    observed = np.bincount(drawn, minlength=len(probs))
    possible = expected > 0
    assert not observed[~possible].any(), "a barred token was drawn"
    assert expected[possible].min() >= 5, "too few draws for the statistic"
    terms = (observed[possible] - expected[possible]) ** 2 / expected[possible]
    return float(terms.sum()), int(possible.sum()) - 1


LOGITS_8 = [2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 3.0, 1.5]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=2, top_k=6, top_p=0.9, min_p=0.1),
        SamplingParams(logit_bias={5: 4.0, 6: -INF}, repetition_penalty=1.5, top_p=0.95),
        SamplingParams(allowed_token_ids=[0, 2, 4, 7]),
    ],
    ids=lambda p: ",".join(
        f"{n}={getattr(p, n)}" for n in ("temperature", "top_k", "top_p", "min_p")
    ),
)
def test_200_000_draws_follow_the_distribution(params: SamplingParams) -> None:
    n = 20_000
    row = Row(params)
    metadata = S.SamplingMetadata.build([row] * n, 8)
    logits = np.tile(np.array(LOGITS_8, np.float32), (n, 1))
    sampler = S.Sampler(seed=11)
    drawn = np.concatenate([sampler(logits, metadata).sampled_token_ids for _ in range(10)])
    assert len(drawn) == 200_000
    statistic, freedom = chi_square(drawn, slow_allowed(LOGITS_8, row))
    assert statistic < CHI_SQUARE_0_001[freedom]


def test_the_first_draws_of_many_seeds_follow_the_distribution() -> None:
    probs = S.softmax(np.tile(np.array(LOGITS_8, np.float32), (4000, 1)))
    generators = {i: S.make_generator(SamplingParams(seed=i)) for i in range(4000)}
    drawn = S.random_sample(probs, generators, np.random.default_rng(0))  # type: ignore[arg-type]
    statistic, freedom = chi_square(drawn, slow_softmax(LOGITS_8))
    assert statistic < CHI_SQUARE_0_001[freedom]


def test_rows_without_a_seed_draw_freely_beside_rows_with_one() -> None:
    n = 8000
    probs = S.softmax(np.tile(np.array(LOGITS_8, np.float32), (n, 1)))
    generators = {i: np.random.default_rng(i) for i in range(0, n, 8)}
    drawn = S.random_sample(probs, generators, np.random.default_rng(1))
    unseeded = np.delete(drawn, list(generators))
    statistic, freedom = chi_square(unseeded, slow_softmax(LOGITS_8))
    assert statistic < CHI_SQUARE_0_001[freedom]
    again = S.random_sample(probs, {}, np.random.default_rng(1))
    assert again[1:8].tolist() == drawn[1:8].tolist(), "a seeded row must not shift the others"


def test_noise_that_is_exactly_zero_draws_no_barred_token() -> None:
    class Silent(np.random.Generator):
        """numpy's ziggurat can return an exact 0, too rarely to wait for it."""

        def standard_exponential(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
            out[...] = 0

    probs = np.array([[0, 0, 0.25, 0.75]], np.float32)
    silent = Silent(np.random.PCG64(0))
    assert S.random_sample(probs, {}, silent).tolist() == [3]
    assert S.random_sample(probs, {0: silent}, np.random.default_rng(0)).tolist() == [3]


def test_a_row_that_bars_everything_draws_token_0() -> None:
    greedy = SamplingParams(temperature=0, allowed_token_ids=[5], logit_bias={5: -INF})
    drawn = SamplingParams(
        seed=1, allowed_token_ids=[5], logit_bias={5: -INF}, top_p=0.5, min_p=0.1
    )
    rows = rows_of(greedy, drawn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = S.Sampler()(random_logits(0, 2), S.SamplingMetadata.build(rows, VOCAB))
    assert out.sampled_token_ids.tolist() == [0, 0]


def decode(
    params: SamplingParams, neighbours: list[SamplingParams], steps: int, seed: int
) -> list[int]:
    """A row's tokens over some steps, its neighbours coming and going around it."""
    row, sampler = Row(params), S.Sampler(seed)
    others = rows_of(*neighbours)
    for step in range(steps):
        left = others[: step % (len(others) + 1)]
        rows = [*left, row, *others[len(left) + 1 :]]
        logits = random_logits(step, len(rows))
        logits[len(left)] = random_logits(1000 + step, 1)[0]
        out = sampler(logits, S.SamplingMetadata.build(rows, VOCAB))
        for each, token in zip(rows, out.sampled_token_ids.tolist(), strict=True):
            each.output_token_ids.append(token)
    return row.output_token_ids


def test_a_seeded_row_depends_on_nothing_but_its_seed() -> None:
    params = SamplingParams(seed=42, temperature=0.9, top_p=0.95, frequency_penalty=0.3)
    neighbours = [
        SamplingParams(),
        SamplingParams(temperature=0, logprobs=2),
        SamplingParams(seed=42),
        SamplingParams(seed=7, top_k=3, min_p=0.1),
        SamplingParams(repetition_penalty=1.3, allowed_token_ids=[1, 2]),
    ]
    alone = decode(params, [], 30, seed=0)
    assert decode(params, neighbours, 30, seed=1) == alone
    assert decode(params, neighbours[2:4], 30, seed=2) == alone, "all rows seeded"
    other = params.clone()
    other.seed = 43
    assert decode(other, [], 30, seed=0) != alone
    assert len(set(alone)) > 5, "30 draws at temperature 0.9 should vary"


def test_unseeded_rows_follow_the_samplers_seed() -> None:
    params = SamplingParams(temperature=2)
    assert decode(params, [], 30, seed=5) == decode(params, [], 30, seed=5)
    assert decode(params, [], 30, seed=5) != decode(params, [], 30, seed=6)


def test_a_token_takes_one_vector_of_noise_from_its_generator() -> None:
    params = SamplingParams(seed=-3, top_k=2)
    row, by_hand = Row(params), S.make_generator(params)
    assert row.generator is not None
    assert by_hand is not None
    metadata = S.SamplingMetadata.build([row, *rows_of(SamplingParams())], VOCAB)
    sampler = S.Sampler()
    for step in range(4):
        sampler(random_logits(step, 2), metadata)
        by_hand.standard_exponential(VOCAB)
        assert row.generator.bit_generator.state == by_hand.bit_generator.state


def test_only_rows_that_draw_with_a_seed_get_a_generator() -> None:
    assert S.make_generator(SamplingParams()) is None
    assert S.make_generator(SamplingParams(temperature=0, seed=1)) is None
    assert S.make_generator(SamplingParams(seed=-1)) is None
    for seed in (0, -(2**63), 2**64 - 1):
        assert S.make_generator(SamplingParams(seed=seed)) is not None
    rows = rows_of(SamplingParams(seed=1), SamplingParams(temperature=0))
    rows[1].generator = np.random.default_rng(1)  # a greedy row's is not used up
    assert list(S.SamplingMetadata.build(rows, VOCAB).generators) == [0]


# ---- the whole -----------------------------------------------------------------------------------


def random_params(rng: np.random.Generator, greedy: bool | None = None) -> SamplingParams:
    def sometimes(value: Any, default: Any) -> Any:
        return value if rng.random() < 0.4 else default

    def ids(n: int) -> list[int]:
        return rng.choice(VOCAB, n, replace=False).tolist()

    params = SamplingParams(
        temperature=0.0
        if (rng.random() < 0.5 if greedy is None else greedy)
        else rng.uniform(0.1, 2),
        top_k=sometimes(int(rng.integers(1, VOCAB + 9)), 0),
        top_p=sometimes(rng.uniform(0.1, 1), 1.0),
        min_p=sometimes(rng.uniform(0, 0.5), 0.0),
        seed=sometimes(int(rng.integers(1000)), None),
        presence_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        frequency_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        repetition_penalty=sometimes(rng.uniform(0.5, 2), 1.0),
        logit_bias=sometimes({t: rng.uniform(-9, 9) for t in ids(3)}, None),
        allowed_token_ids=sometimes(ids(12), None),
        stop_token_ids=sometimes(ids(2), None),
        min_tokens=sometimes(int(rng.integers(1, 6)), 0),
        logprobs=sometimes(int(rng.integers(0, 6)), None),
    )
    params.update_from_generation_config({"eos_token_id": [2, 3, 999]}, 2)
    return params


def generations(
    seed: int, greedy: bool | None = None, n: int = 24, steps: int = 8
) -> Iterator[tuple[list[Row], np.ndarray, S.SamplingMetadata, S.SamplerOutput]]:
    """Steps of a random batch with one metadata object throughout, before the tokens are added."""
    rng = np.random.default_rng(seed)
    rows = rows_of(*(random_params(rng, greedy) for _ in range(n)))
    for row in rows:
        row.prompt_token_ids = rng.integers(0, VOCAB, 5).tolist()
        row.output_token_ids.extend(rng.integers(0, VOCAB, int(rng.integers(0, 4))).tolist())
    metadata, sampler = S.SamplingMetadata.build(rows, VOCAB), S.Sampler(seed)
    for step in range(steps):
        logits = random_logits(seed * 100 + step, n)
        out = sampler(logits, metadata)
        yield rows, logits, metadata, out
        for row, token in zip(rows, out.sampled_token_ids.tolist(), strict=True):
            # Now and then a row's token is dropped, or it gets two.
            row.output_token_ids.extend([token] * int(rng.choice(3, p=[0.1, 0.8, 0.1])))


@pytest.mark.parametrize("seed", range(4))
def test_a_mixed_batch_row_by_row(seed: int) -> None:
    sampler = S.Sampler()
    for rows, logits, metadata, out in generations(seed):
        got = sampler.apply_logits_processors(logits, metadata)
        slow = [slow_processors(x, row) for x, row in zip(logits.tolist(), rows, strict=True)]
        np.testing.assert_allclose(got, slow, rtol=1e-4, atol=1e-4)
        assert out.sampled_token_ids.dtype == np.int64
        for i, row in enumerate(rows):
            token = out.sampled_token_ids[i]
            if row.sampling_params.temperature == 0:
                assert token == np.argmax(got[i])
            else:
                probs = slow_allowed(logits[i].tolist(), row)
                assert probs[token] > 0, f"row {i} drew a token that is barred"


@pytest.mark.parametrize("seed", range(4, 7))
def test_metadata_that_is_kept_equals_metadata_built_anew(seed: int) -> None:
    sampler = S.Sampler()
    for rows, logits, metadata, _ in generations(seed, greedy=True):
        fresh = S.SamplingMetadata.build(rows, VOCAB)
        np.testing.assert_array_equal(
            sampler.apply_logits_processors(logits, metadata),
            sampler.apply_logits_processors(logits, fresh),
        )


@pytest.mark.parametrize("seed", range(7, 9))
def test_a_greedy_row_is_the_same_in_any_batch(seed: int) -> None:
    sampler = S.Sampler()
    for rows, logits, _, out in generations(seed, steps=4):
        for i, row in enumerate(rows):
            if row.sampling_params.temperature == 0:
                alone = sampler(logits[i : i + 1], S.SamplingMetadata.build([row], VOCAB))
                assert alone.sampled_token_ids.tolist() == [out.sampled_token_ids[i]]


def test_logprobs_are_raw_and_as_many_as_the_greediest_row_asks_for() -> None:
    rows = rows_of(
        SamplingParams(temperature=0.3, top_k=1, logit_bias={4: 50}, logprobs=0),
        SamplingParams(temperature=0, repetition_penalty=2, logprobs=3),
        SamplingParams(),
    )
    logits = random_logits(12, 3)
    metadata = S.SamplingMetadata.build(rows, VOCAB)
    out = S.Sampler()(logits, metadata)
    assert out.logprobs is not None
    assert metadata.max_num_logprobs == 3
    expected = S.gather_logprobs(S.compute_logprobs(logits), 3, out.sampled_token_ids)
    for got, want in zip(out.logprobs, expected, strict=True):
        np.testing.assert_array_equal(got, want)
    assert out.sampled_token_ids[0] == 4
    assert out.logprobs.logprobs[0, 0] < -0.5, "the bias must not show in the logprobs"


def test_all_logprobs() -> None:
    rows = rows_of(SamplingParams(logprobs=-1), SamplingParams(logprobs=2))
    out = S.Sampler()(random_logits(13, 2), S.SamplingMetadata.build(rows, VOCAB))
    assert out.logprobs is not None
    assert out.logprobs.logprobs.shape == (2, VOCAB + 1)
    np.testing.assert_allclose(np.exp(out.logprobs.logprobs[:, 1:]).sum(axis=1), 1, rtol=1e-5)


def test_the_order_of_the_steps_shows() -> None:
    # Bias first, then penalty: (1 + 4) / 2. The other way round it would be 1 / 2 + 4.
    row = Row(SamplingParams(temperature=0, logit_bias={1: 4.0}, repetition_penalty=2.0))
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 1], logits[0, 9] = 1, 3
    metadata = S.SamplingMetadata.build([row], VOCAB)
    assert S.Sampler().apply_logits_processors(logits, metadata)[0, 1] == 2.5
    assert S.Sampler()(logits, metadata).sampled_token_ids.tolist() == [9]
    # Temperature before min_p: at 0.1 the second token is e**-10 of the first, at 1 it is e**-1.
    row = Row(SamplingParams(temperature=0.1, min_p=0.01))
    logits[0, 9], logits[0, 1] = 30, 29
    metadata = S.SamplingMetadata.build([row] * 500, VOCAB)
    drawn = S.Sampler()(np.repeat(logits, 500, axis=0), metadata).sampled_token_ids
    assert set(drawn.tolist()) == {9}


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_bars_every_stop_until_it_is_reached(ignore_eos: bool) -> None:
    params = SamplingParams(temperature=0, min_tokens=3, stop_token_ids=[5], ignore_eos=ignore_eos)
    params.update_from_generation_config({"eos_token_id": [2, 7, VOCAB + 1]}, 2)
    rows = [Row(params), *rows_of(SamplingParams(temperature=0))]
    metadata, sampler = S.SamplingMetadata.build(rows, VOCAB), S.Sampler()
    logits = np.zeros((2, VOCAB), np.float32)
    logits[:, [5, 2, 7, 9]] = [4, 3, 2, 1]
    for _ in range(5):
        out = sampler(logits, metadata)
        for row, token in zip(rows, out.sampled_token_ids.tolist(), strict=True):
            row.output_token_ids.append(token)
    assert rows[0].output_token_ids == [9, 9, 9, 5, 5]
    assert rows[1].output_token_ids == [5] * 5


class Watched(list[int]):
    """A list that counts what is read from it."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        self.reads += 1 if isinstance(at, int) else len(range(*at.indices(len(self))))
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[int]:
        self.reads += len(self)
        return super().__iter__()


def test_a_step_reads_one_token_of_a_long_output() -> None:
    rows = rows_of(*[SamplingParams(frequency_penalty=0.5, min_tokens=9, max_tokens=5000)] * 3)
    for row in rows:
        row.output_token_ids = Watched([1, 2] * 1000)
    metadata, sampler = S.SamplingMetadata.build(rows, VOCAB), S.Sampler()
    for step in range(3):
        sampler(random_logits(step, 3), metadata)
        for row in rows:
            row.output_token_ids.append(step)
            row.output_token_ids.reads = 0  # type: ignore[attr-defined]
    sampler(random_logits(4, 3), metadata)
    assert [row.output_token_ids.reads for row in rows] == [1, 1, 1]  # type: ignore[attr-defined]


# ---- greedy rows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other_row",
    [
        SamplingParams(temperature=0, logprobs=0),
        SamplingParams(temperature=0, allowed_token_ids=list(range(VOCAB))),
        SamplingParams(temperature=0, logit_bias={0: 0.0}),
        SamplingParams(temperature=0, presence_penalty=1e-30),
        SamplingParams(temperature=0, min_tokens=1, stop_token_ids=[]),
        SamplingParams(),
    ],
    ids=["logprobs", "allowed", "bias", "penalty", "min_tokens", "a random row"],
)
def test_another_row_changes_nothing_for_the_greedy_ones(other_row: SamplingParams) -> None:
    greedy = SamplingParams(temperature=0)
    logits = random_logits(14, 64).round()  # with ties
    alone = S.SamplingMetadata.build(rows_of(*[greedy] * 64), VOCAB)
    mixed = S.SamplingMetadata.build(rows_of(*[greedy] * 63, other_row), VOCAB)
    one, other = S.Sampler()(logits, alone), S.Sampler()(logits, mixed)
    assert one.sampled_token_ids[:63].tolist() == other.sampled_token_ids[:63].tolist()
    assert one.sampled_token_ids.dtype == other.sampled_token_ids.dtype == np.int64
    assert one.sampled_token_ids.tolist() == [row.index(max(row)) for row in logits.tolist()]


def test_an_empty_batch() -> None:
    metadata = S.SamplingMetadata.build([], VOCAB)
    out = S.Sampler()(np.empty((0, VOCAB), np.float32), metadata)
    assert out.sampled_token_ids.shape == (0,)
    assert out.logprobs is None


@pytest.mark.parametrize("shape", [(1, VOCAB), (3, VOCAB), (2, VOCAB + 1), (VOCAB,)])
def test_logits_of_another_shape(shape: tuple[int, ...]) -> None:
    metadata = S.SamplingMetadata.build(rows_of(SamplingParams(), SamplingParams()), VOCAB)
    with pytest.raises(ValueError, match=rf"\(2, {VOCAB}\).*got \({shape[0]},"):
        S.Sampler()(np.zeros(shape, np.float32), metadata)


# ---- properties ----------------------------------------------------------------------------------


def test_properties_of_top_k_and_top_p() -> None:
    pytest.importorskip("hypothesis")
    from hypothesis import given, settings
    from hypothesis import strategies as st

    logit = st.one_of(st.floats(-20, 20, width=32), st.sampled_from([-INF, 0.0, 1.0]))

    @settings(max_examples=100)
    @given(
        st.lists(logit, min_size=1, max_size=12).filter(lambda row: max(row) > -INF),
        st.integers(1, 12),
        st.floats(2**-20, 1, width=32),
    )
    def check(row: list[float], k: int, p: float) -> None:
        logits = np.array([row], np.float32)
        k = min(k, len(row))
        ks, ps = np.array([k]), np.array([p], np.float32)
        kept = S.apply_top_k_top_p(logits, ks, ps)
        stays = np.isfinite(kept[0])
        assert stays.any(), "one token always stays"
        np.testing.assert_array_equal(kept[0, stays], logits[0, stays])
        if not stays.all():
            assert logits[0, stays].min() >= logits[0, ~stays].max(), "a likelier token went"
        by_k = S.apply_top_k_only(logits, ks)
        assert np.isfinite(by_k[0])[stays].all()
        assert S.softmax(by_k)[0, stays].sum() >= p - 1e-5, "less than p was kept"

    check()


# ---- the same of real vLLM -----------------------------------------------------------------------


@pytest.mark.vllm
class TestAgainstVllm:
    @pytest.fixture(autouse=True)
    def _uncompiled(self) -> Iterator[None]:
        """vLLM's functions as they are written: compiling two of them takes half a minute."""
        import torch

        with torch.compiler.set_stance("force_eager"):
            yield

    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize("vocab", [24, 264])
    def test_top_k_and_top_p(self, ties: bool, vocab: int) -> None:
        import torch
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

        logits = random_logits(20, 300, vocab)
        logits = logits.round() if ties else logits
        rng = np.random.default_rng(20)
        logits[rng.random(logits.shape) < 0.1] = -np.inf
        k = rng.integers(1, vocab + 1, 300)
        p = rng.uniform(0.05, 1, 300).astype(np.float32)
        p[::10], k[::7] = 1.0, vocab
        for ks, ps in ((k, None), (None, p), (k, p)):
            theirs = apply_top_k_top_p_pytorch(
                torch.tensor(logits),
                None if ks is None else torch.tensor(ks),
                None if ps is None else torch.tensor(ps),
                allow_cpu_sync=True,
            )
            ours, real = S.apply_top_k_top_p(logits, ks, ps), theirs.numpy()
            if ties:  # Equal logits come in any order out of torch.sort; how many stay is fixed.
                ours, real = np.sort(ours, axis=-1), np.sort(real, axis=-1)
            np.testing.assert_array_equal(ours, real)

    def test_penalties(self) -> None:
        import torch
        from vllm.v1.sample.ops.penalties import apply_all_penalties

        rng = np.random.default_rng(21)
        rows = rows_of(*(random_params(rng) for _ in range(40)))
        for row in rows:
            row.output_token_ids.extend(rng.integers(0, VOCAB, int(rng.integers(0, 30))).tolist())
        state = S.PenaltyState(rows, list(range(40)), VOCAB)
        logits = random_logits(21, 40)
        theirs = apply_all_penalties(
            torch.tensor(logits),
            torch.tensor([row.prompt_token_ids for row in rows]),
            torch.tensor(state.presence),
            torch.tensor(state.frequency),
            torch.tensor(state.repetition),
            [row.output_token_ids for row in rows],
        )
        np.testing.assert_allclose(state.apply(logits), theirs.numpy(), rtol=1e-6, atol=1e-6)

    def test_logprobs_and_temperature(self) -> None:
        import torch
        from vllm.v1.sample.sampler import Sampler

        logits = random_logits(22, 50)
        logprobs = S.compute_logprobs(logits)
        theirs = Sampler.compute_logprobs(torch.tensor(logits)).numpy()
        np.testing.assert_allclose(logprobs, theirs, rtol=1e-6, atol=1e-6)
        token_ids = np.random.default_rng(22).integers(0, VOCAB, 50)
        for k in (0, 1, 5):
            ours = S.gather_logprobs(logprobs, k, token_ids)
            real = Sampler.gather_logprobs(torch.tensor(logprobs), k, torch.tensor(token_ids))
            for got, want in zip(ours, real.tolists()[:3], strict=True):
                np.testing.assert_array_equal(got, want)
        temp = np.linspace(0, 2, 50).astype(np.float32)
        np.testing.assert_array_equal(
            S.apply_temperature(logits, temp, False),
            Sampler.apply_temperature(torch.tensor(logits), torch.tensor(temp), False).numpy(),
        )

    @pytest.mark.parametrize("seed", range(30, 33))
    def test_the_whole_batch(self, seed: int) -> None:
        """Processed logits, greedy tokens and logprobs of vLLM's own Sampler, step by step."""
        for rows, logits, metadata, out in generations(seed, steps=3):
            sampler, theirs = vllm_sampler(rows)
            import torch

            processed = sampler.apply_logits_processors(torch.tensor(logits), theirs, False)
            ours = S.Sampler().apply_logits_processors(logits, metadata)
            np.testing.assert_allclose(ours, processed.numpy(), rtol=1e-6, atol=1e-6)
            real = sampler(torch.tensor(logits), theirs)
            greedy = np.array([row.sampling_params.temperature == 0 for row in rows])
            real_tokens = real.sampled_token_ids.numpy()[:, 0]
            assert real_tokens[greedy].tolist() == out.sampled_token_ids[greedy].tolist()
            assert real.logprobs_tensors is not None
            assert out.logprobs is not None
            for got, want in zip(out.logprobs, real.logprobs_tensors.tolists()[:3], strict=True):
                np.testing.assert_allclose(got[greedy], want[greedy], rtol=1e-6, atol=1e-6)

    def test_what_can_be_drawn(self) -> None:
        """After temperature, min_p, top_k and top_p the same tokens are left, equally likely."""
        import torch
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

        rng = np.random.default_rng(40)
        rows = rows_of(*(random_params(rng, greedy=False) for _ in range(120)))
        logits = random_logits(40, 120)
        metadata = S.SamplingMetadata.build(rows, VOCAB)
        sampler, theirs = vllm_sampler(rows)
        real = sampler.apply_temperature(torch.tensor(logits), theirs.temperature, True)
        for processor in theirs.logitsprocs.argmax_invariant:
            real = processor.apply(real)
        real = apply_top_k_top_p_pytorch(real, theirs.top_k, theirs.top_p, allow_cpu_sync=True)
        assert metadata.temperature is not None
        assert metadata.min_p is not None
        ours = S.apply_temperature(logits, metadata.temperature, True)
        ours = S.apply_min_p(ours, metadata.min_p)
        ours = S.apply_top_k_top_p(ours, metadata.top_k, metadata.top_p)
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(real.numpy()))
        np.testing.assert_allclose(S.softmax(ours), real.softmax(-1).numpy(), rtol=1e-5, atol=1e-7)


def vllm_sampler(rows: list[Row]) -> tuple[Any, Any]:
    """vLLM's own sampler, and its metadata for these rows as its input batch would build it."""
    import torch
    import vllm
    from vllm.v1.sample.logits_processor import (
        BatchUpdate,
        LogitBiasLogitsProcessor,
        LogitsProcessors,
        MinPLogitsProcessor,
        MinTokensLogitsProcessor,
    )
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler

    params = []
    for row in rows:
        p = row.sampling_params
        names = ("temperature", "top_k", "top_p", "min_p", "logit_bias", "min_tokens")
        real = vllm.SamplingParams(
            **{name: getattr(p, name) for name in names}, stop_token_ids=p.stop_token_ids
        )
        real.update_from_generation_config({}, p.eos_token_id)
        # An id beyond the vocabulary is one that vLLM's scatter cannot take.
        real.all_stop_token_ids.intersection_update(range(VOCAB))
        params.append(real)
    update = BatchUpdate(
        batch_size=len(rows),
        removed=[],
        moved=[],
        added=[
            (i, p, row.prompt_token_ids, row.output_token_ids)
            for i, (p, row) in enumerate(zip(params, rows, strict=True))
        ],
    )
    config = vllm.config.VllmConfig()
    cpu = torch.device("cpu")
    processors = [
        kind(config, cpu, False)
        for kind in (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
    ]
    for processor in processors:
        processor.update_state(update)

    ours = [row.sampling_params for row in rows]
    temperature = torch.tensor([p.temperature for p in ours])
    barred = torch.zeros(len(rows), VOCAB, dtype=torch.bool)
    for i, p in enumerate(ours):
        if p.allowed_token_ids:
            barred[i] = True
            barred[i, p.allowed_token_ids] = False
    return Sampler(), SamplingMetadata(
        temperature=temperature,
        all_greedy=bool((temperature == 0).all()),
        all_random=bool((temperature > 0).all()),
        top_p=torch.tensor([p.top_p for p in ours]),
        top_k=torch.tensor([p.top_k if 0 < p.top_k < VOCAB else VOCAB for p in ours]),
        generators={i: torch.Generator().manual_seed(i) for i in range(len(rows))},
        max_num_logprobs=max((p.logprobs for p in ours if p.logprobs is not None), default=None),
        no_penalties=False,
        prompt_token_ids=torch.tensor([row.prompt_token_ids for row in rows]),
        frequency_penalties=torch.tensor([p.frequency_penalty for p in ours]),
        presence_penalties=torch.tensor([p.presence_penalty for p in ours]),
        repetition_penalties=torch.tensor([p.repetition_penalty for p in ours]),
        output_token_ids=[row.output_token_ids for row in rows],
        allowed_token_ids_mask=barred,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(processors),
    )
