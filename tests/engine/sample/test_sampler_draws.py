"""The draw: its distribution, its seeds, its noise."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from mini_vllm.sample import ops
from mini_vllm.sample.generator import TorchGenerator, exponential_from_bits
from mini_vllm.sample.metadata import SamplingMetadata, make_generator
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from tests.engine.helpers.sampling.sampler_helpers import (
    CHI_SQUARE_0_001,
    INF,
    VOCAB,
    Row,
    random_logits,
    rows_of,
    slow_allowed,
    slow_softmax,
)
from tests.engine.helpers.thorough import either

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
def test_many_draws_follow_the_distribution(params: SamplingParams) -> None:
    n = 20_000
    row = Row(params)
    metadata = SamplingMetadata.build([row] * n, 8)
    logits = np.tile(np.array(LOGITS_8, np.float32), (n, 1))
    sampler = Sampler(seed=11)
    drawn = np.concatenate(
        [sampler(logits, metadata).sampled_token_ids for _ in range(either(1, 10))]
    )
    statistic, freedom = chi_square(drawn, slow_allowed(LOGITS_8, row))
    assert statistic < CHI_SQUARE_0_001[freedom]


def test_the_first_draws_of_many_seeds_follow_the_distribution() -> None:
    count = either(600, 4000)
    probs = ops.softmax(np.tile(np.array(LOGITS_8, np.float32), (count, 1)))
    generators = {i: make_generator(SamplingParams(seed=i)) for i in range(count)}
    drawn = ops.random_sample(probs, generators, TorchGenerator(0))  # type: ignore[arg-type]
    statistic, freedom = chi_square(drawn, slow_softmax(LOGITS_8))
    assert statistic < CHI_SQUARE_0_001[freedom]


def test_rows_without_a_seed_draw_freely_beside_rows_with_one() -> None:
    n = either(3200, 8000)
    probs = ops.softmax(np.tile(np.array(LOGITS_8, np.float32), (n, 1)))
    generators = {i: TorchGenerator(i) for i in range(0, n, 8)}
    drawn = ops.random_sample(probs, generators, TorchGenerator(n))
    unseeded = np.delete(drawn, list(generators))
    statistic, freedom = chi_square(unseeded, slow_softmax(LOGITS_8))
    assert statistic < CHI_SQUARE_0_001[freedom]
    again = ops.random_sample(probs, {}, TorchGenerator(n))
    assert again[1:8].tolist() == drawn[1:8].tolist(), "a seeded row must not shift the others"


def test_noise_that_is_exactly_zero_draws_no_barred_token() -> None:
    """A draw of 0 comes once in 2**53 numbers, too rarely to wait for it."""
    probs = np.array([[0, 0, 0.25, 0.75]], np.float32)
    assert ops.race(probs, np.zeros((1, 4), np.int64)).tolist() == [3]
    assert ops.race(probs, np.array([[0, 1 << 52, 0, 1 << 40]])).tolist() == [2]


def test_the_race_is_won_by_the_largest_quotient() -> None:
    """Against the sum done in full: flat rows and sharp ones, barred tokens, equal draws, draws of 0."""
    rng = np.random.default_rng(0)
    for _ in range(either(200, 5000)):
        n, vocab_size = int(rng.integers(1, 6)), int(rng.choice([2, 3, 8, 264, 3000]))
        logits = rng.standard_normal((n, vocab_size)) * rng.choice([0.1, 1, 5, 30])
        logits = np.round(logits, int(rng.integers(0, 7))).astype(np.float32)
        logits[:, 1:][rng.random((n, vocab_size - 1)) < rng.choice([0, 0.6])] = -np.inf
        probs = ops.softmax(logits)
        draws = rng.integers(0, 1 << 53, (n, vocab_size))
        if rng.random() < 0.3:
            draws[:] = draws[:, :1]
        draws[0, 0] *= int(rng.integers(2))
        noise = np.maximum(exponential_from_bits(draws), np.finfo(np.float32).tiny)
        assert ops.race(probs, draws).tolist() == (probs / noise).argmax(axis=1).tolist()


def test_a_row_that_bars_everything_draws_token_0() -> None:
    greedy = SamplingParams(temperature=0, allowed_token_ids=[5], logit_bias={5: -INF})
    drawn = SamplingParams(
        seed=1, allowed_token_ids=[5], logit_bias={5: -INF}, top_p=0.5, min_p=0.1
    )
    rows = rows_of(greedy, drawn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = Sampler()(random_logits(0, 2), SamplingMetadata.build(rows, VOCAB))
    assert out.sampled_token_ids.tolist() == [0, 0]


def decode(
    params: SamplingParams, neighbours: list[SamplingParams], steps: int, seed: int
) -> list[int]:
    """A row's tokens over some steps, its neighbours coming and going around it."""
    row, sampler = Row(params), Sampler(seed)
    others = rows_of(*neighbours)
    for step in range(steps):
        left = others[: step % (len(others) + 1)]
        rows = [*left, row, *others[len(left) + 1 :]]
        logits = random_logits(step, len(rows))
        logits[len(left)] = random_logits(1000 + step, 1)[0]
        out = sampler(logits, SamplingMetadata.build(rows, VOCAB))
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
    row, by_hand = Row(params), make_generator(params)
    assert row.generator is not None
    assert by_hand is not None
    metadata = SamplingMetadata.build([row, *rows_of(SamplingParams())], VOCAB)
    sampler = Sampler()
    for step in range(4):
        sampler(random_logits(step, 2), metadata)
        by_hand.standard_exponential(VOCAB)
    assert row.generator.random(3).tolist() == by_hand.random(3).tolist()


def test_only_rows_that_draw_with_a_seed_get_a_generator() -> None:
    assert make_generator(SamplingParams()) is None
    assert make_generator(SamplingParams(temperature=0, seed=1)) is None
    assert make_generator(SamplingParams(seed=-1)) is None
    for seed in (0, -(2**63), 2**64 - 1):
        assert make_generator(SamplingParams(seed=seed)) is not None
    rows = rows_of(SamplingParams(seed=1), SamplingParams(temperature=0))
    rows[1].generator = TorchGenerator(1)  # a greedy row's is not used up
    assert list(SamplingMetadata.build(rows, VOCAB).generators) == [0]
