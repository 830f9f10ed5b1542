"""A whole batch against its steps, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mini_vllm.sample import ops
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from tests.engine.helpers.sampling.sampler_helpers import (
    INF,
    VOCAB,
    Row,
    generations,
    random_logits,
    rows_of,
    slow_allowed,
    slow_processors,
)
from tests.engine.helpers.thorough import either

# ---- the whole -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_mixed_batch_row_by_row(seed: int) -> None:
    sampler = Sampler()
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
    sampler = Sampler()
    for rows, logits, metadata, _ in generations(seed, greedy=True):
        fresh = SamplingMetadata.build(rows, VOCAB)
        np.testing.assert_array_equal(
            sampler.apply_logits_processors(logits, metadata),
            sampler.apply_logits_processors(logits, fresh),
        )


@pytest.mark.parametrize("seed", range(7, 9))
def test_a_greedy_row_is_the_same_in_any_batch(seed: int) -> None:
    sampler = Sampler()
    for rows, logits, _, out in generations(seed, steps=4):
        for i, row in enumerate(rows):
            if row.sampling_params.temperature == 0:
                alone = sampler(logits[i : i + 1], SamplingMetadata.build([row], VOCAB))
                assert alone.sampled_token_ids.tolist() == [out.sampled_token_ids[i]]


def test_logprobs_are_raw_and_as_many_as_the_greediest_row_asks_for() -> None:
    rows = rows_of(
        SamplingParams(temperature=0.3, top_k=1, logit_bias={4: 50}, logprobs=0),
        SamplingParams(temperature=0, repetition_penalty=2, logprobs=3),
        SamplingParams(),
    )
    logits = random_logits(12, 3)
    metadata = SamplingMetadata.build(rows, VOCAB)
    out = Sampler()(logits, metadata)
    assert out.logprobs is not None
    assert metadata.max_num_logprobs == 3
    expected = ops.gather_logprobs(ops.compute_logprobs(logits), 3, out.sampled_token_ids)
    for got, want in zip(out.logprobs, expected, strict=True):
        np.testing.assert_array_equal(got, want)
    assert out.sampled_token_ids[0] == 4
    assert out.logprobs.logprobs[0, 0] < -0.5, "the bias must not show in the logprobs"


def test_all_logprobs() -> None:
    rows = rows_of(SamplingParams(logprobs=-1), SamplingParams(logprobs=2))
    out = Sampler()(random_logits(13, 2), SamplingMetadata.build(rows, VOCAB))
    assert out.logprobs is not None
    assert out.logprobs.logprobs.shape == (2, VOCAB + 1)
    np.testing.assert_allclose(np.exp(out.logprobs.logprobs[:, 1:]).sum(axis=1), 1, rtol=1e-5)


def test_the_order_of_the_steps_shows() -> None:
    # Bias first, then penalty: (1 + 4) / 2. The other way round it would be 1 / 2 + 4.
    row = Row(SamplingParams(temperature=0, logit_bias={1: 4.0}, repetition_penalty=2.0))
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 1], logits[0, 9] = 1, 3
    metadata = SamplingMetadata.build([row], VOCAB)
    assert Sampler().apply_logits_processors(logits, metadata)[0, 1] == 2.5
    assert Sampler()(logits, metadata).sampled_token_ids.tolist() == [9]
    # Temperature before min_p: at 0.1 the second token is e**-10 of the first, at 1 it is e**-1.
    row = Row(SamplingParams(temperature=0.1, min_p=0.01))
    logits[0, 9], logits[0, 1] = 30, 29
    metadata = SamplingMetadata.build([row] * 500, VOCAB)
    drawn = Sampler()(np.repeat(logits, 500, axis=0), metadata).sampled_token_ids
    assert set(drawn.tolist()) == {9}


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_bars_every_stop_until_it_is_reached(ignore_eos: bool) -> None:
    params = SamplingParams(temperature=0, min_tokens=3, stop_token_ids=[5], ignore_eos=ignore_eos)
    params.update_from_generation_config({"eos_token_id": [2, 7, VOCAB + 1]}, 2)
    rows = [Row(params), *rows_of(SamplingParams(temperature=0))]
    metadata, sampler = SamplingMetadata.build(rows, VOCAB), Sampler()
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
    metadata, sampler = SamplingMetadata.build(rows, VOCAB), Sampler()
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
    alone = SamplingMetadata.build(rows_of(*[greedy] * 64), VOCAB)
    mixed = SamplingMetadata.build(rows_of(*[greedy] * 63, other_row), VOCAB)
    one, other = Sampler()(logits, alone), Sampler()(logits, mixed)
    assert one.sampled_token_ids[:63].tolist() == other.sampled_token_ids[:63].tolist()
    assert one.sampled_token_ids.dtype == other.sampled_token_ids.dtype == np.int64
    assert one.sampled_token_ids.tolist() == [row.index(max(row)) for row in logits.tolist()]


def test_an_empty_batch() -> None:
    metadata = SamplingMetadata.build([], VOCAB)
    out = Sampler()(np.empty((0, VOCAB), np.float32), metadata)
    assert out.sampled_token_ids.shape == (0,)
    assert out.logprobs is None


@pytest.mark.parametrize("shape", [(1, VOCAB), (3, VOCAB), (2, VOCAB + 1), (VOCAB,)])
def test_logits_of_another_shape(shape: tuple[int, ...]) -> None:
    metadata = SamplingMetadata.build(rows_of(SamplingParams(), SamplingParams()), VOCAB)
    with pytest.raises(ValueError, match=rf"\(2, {VOCAB}\).*got \({shape[0]},"):
        Sampler()(np.zeros(shape, np.float32), metadata)


# ---- properties ----------------------------------------------------------------------------------


def test_properties_of_top_k_and_top_p() -> None:
    pytest.importorskip("hypothesis")
    from hypothesis import given, settings
    from hypothesis import strategies as st

    logit = st.one_of(st.floats(-20, 20, width=32), st.sampled_from([-INF, 0.0, 1.0]))

    @settings(max_examples=either(40, 100))
    @given(
        st.lists(logit, min_size=1, max_size=12).filter(lambda row: max(row) > -INF),
        st.integers(1, 12),
        st.floats(2**-20, 1, width=32),
    )
    def check(row: list[float], k: int, p: float) -> None:
        logits = np.array([row], np.float32)
        k = min(k, len(row))
        ks, ps = np.array([k]), np.array([p], np.float32)
        kept = ops.apply_top_k_top_p(logits, ks, ps)
        stays = np.isfinite(kept[0])
        assert stays.any(), "one token always stays"
        np.testing.assert_array_equal(kept[0, stays], logits[0, stays])
        if not stays.all():
            assert logits[0, stays].min() >= logits[0, ~stays].max(), "a likelier token went"
        by_k = ops.apply_top_k_only(logits, ks)
        assert np.isfinite(by_k[0])[stays].all()
        assert ops.softmax(by_k)[0, stays].sum() >= p - 1e-5, "less than p was kept"

    check()
