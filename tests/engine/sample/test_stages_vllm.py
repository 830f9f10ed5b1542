"""Every stage of the sampler on random batches beside vLLM's own function, then all of them at once.

Where two roundings may decide (a sum beside a limit, two quotients beside each other) rows may differ that
are as close as that; they are counted, and shown when there are too many.

`STAGE_BATCHES=10000 pytest -m vllm tests/engine/sample/test_stages_vllm.py` looks at so many of each stage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from mini_vllm.sample import ops
from mini_vllm.sample.generator import TorchGenerator
from mini_vllm.sample.metadata import (
    BadWordsState,
    MinTokensState,
    PenaltyState,
    SamplingMetadata,
)
from mini_vllm.sample.sampler import Sampler
from tests.engine.helpers.sampling.sampler_helpers import (
    Row,
    random_logits,
    random_params,
    rows_of,
)
from tests.engine.helpers.sampling.sampler_vllm import race_margin, vllm_processors, vllm_sampler
from tests.engine.helpers.thorough import either

pytestmark = pytest.mark.vllm
BATCHES = int(os.environ.get("STAGE_BATCHES", either(40, 2_000)))
WHOLE = either(60, 2_000)
NEAR = 1e-5
"""Relative distance below which two float32 results may be ordered either way."""


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """vLLM's functions as they are written: compiling two of them takes half a minute."""
    import torch

    with torch.compiler.set_stance("force_eager"):
        yield


def random_batch(seed: int, greedy: bool | None = None, seeded: bool = False) -> list[Row]:
    """1 to 8 rows that have said something, some of them with bad words."""
    rng = np.random.default_rng(seed)
    rows = rows_of(*(random_params(rng, greedy) for _ in range(int(rng.integers(1, 9)))))
    for row in rows:
        row.prompt_token_ids = rng.integers(0, 24, int(rng.integers(1, 9))).tolist()
        row.output_token_ids.extend(rng.integers(0, 24, int(rng.integers(0, 9))).tolist())
        if rng.random() < 0.4:
            words = [rng.integers(0, 24, int(rng.integers(1, 4))).tolist() for _ in range(3)]
            if len(row.output_token_ids) > 1:
                words.append([*row.output_token_ids[-2:], int(rng.integers(24))])
            row.sampling_params._bad_words_token_ids = words
        if seeded and row.sampling_params.temperature > 0:
            row.sampling_params.seed = int(rng.integers(2**40))
            row.__post_init__()
    return rows


def random_input(seed: int, rows: list[Row], barred: float = 0.1) -> np.ndarray:
    """Logits of 24 or 264 tokens, sharp or flat, some of them barred already."""
    rng = np.random.default_rng(seed + 1)
    vocab = int(rng.choice([24, 264]))
    logits = random_logits(seed, len(rows), vocab, float(rng.choice([0.5, 3.0, 8.0])))
    logits[:, 1:][rng.random((len(rows), vocab - 1)) < barred] = -np.inf
    return logits


Both = Callable[[list[Row], np.ndarray], tuple[np.ndarray, np.ndarray]]


def allowed(rows: list[Row], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch

    _, theirs = vllm_sampler(rows, logits.shape[1])
    mask = SamplingMetadata.build(rows, logits.shape[1]).allowed_token_ids_mask
    ours = logits if mask is None else ops.mask_logits(logits, mask)
    real = torch.tensor(logits).masked_fill_(theirs.allowed_token_ids_mask, float("-inf"))
    return ours, real.numpy()


def bad_words(rows: list[Row], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch
    from vllm.v1.sample.ops.bad_words import apply_bad_words

    real = torch.tensor(logits)
    words = {
        i: row.sampling_params.bad_words_token_ids
        for i, row in enumerate(rows)
        if row.sampling_params.bad_words_token_ids
    }
    apply_bad_words(real, words, [row.output_token_ids for row in rows])  # type: ignore[arg-type]
    return BadWordsState(rows).apply(logits), real.numpy()


def min_tokens(rows: list[Row], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch

    vocab = logits.shape[1]
    ours = ops.apply_min_tokens(logits, *MinTokensState(rows, vocab).logits_slice)
    return ours, vllm_processors(rows, vocab)[0].apply(torch.tensor(logits)).numpy()


def logit_bias(rows: list[Row], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch

    bias = SamplingMetadata.build(rows, logits.shape[1]).logit_bias
    ours = logits if bias is None else ops.apply_logit_bias(logits, *bias)
    return ours, vllm_processors(rows, logits.shape[1])[1].apply(torch.tensor(logits)).numpy()


def penalties(rows: list[Row], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch

    sampler, theirs = vllm_sampler(rows, logits.shape[1])
    state = PenaltyState(rows, list(range(len(rows))), logits.shape[1])
    real = sampler.apply_penalties(torch.tensor(logits), theirs, theirs.output_token_ids)
    return state.apply(logits), real.numpy()


def temperature(rows: list[Row], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch

    sampler, theirs = vllm_sampler(rows, logits.shape[1])
    temp = np.array([row.sampling_params.temperature for row in rows], np.float32)
    real = sampler.apply_temperature(torch.tensor(logits), theirs.temperature, theirs.all_random)
    return ops.apply_temperature(logits, temp, theirs.all_random), real.numpy()


def min_p(rows: list[Row], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch

    floor = SamplingMetadata.build(rows, logits.shape[1]).min_p
    ours = logits if floor is None else ops.apply_min_p(logits, floor)
    return ours, vllm_processors(rows, logits.shape[1])[2].apply(torch.tensor(logits)).numpy()


def top_k_top_p(rows: list[Row], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    metadata = SamplingMetadata.build(rows, logits.shape[1])
    _, theirs = vllm_sampler(rows, logits.shape[1])
    real = apply_top_k_top_p_pytorch(
        torch.tensor(logits), theirs.top_k, theirs.top_p, allow_cpu_sync=True
    )
    return ops.apply_top_k_top_p(logits, metadata.top_k, metadata.top_p), real.numpy()


def logprobs(rows: list[Row], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch
    from vllm.v1.sample.sampler import Sampler as Theirs

    return ops.compute_logprobs(logits), Theirs.compute_logprobs(torch.tensor(logits)).numpy()


STAGES: list[Both] = [
    allowed, bad_words, min_tokens, logit_bias, penalties, temperature, min_p, top_k_top_p, logprobs,
]  # fmt: skip


def beside_a_limit(ours: np.ndarray, real: np.ndarray, logits: np.ndarray) -> bool:
    """Whether a row differs only in tokens at one value: the last that stays, or the first that goes."""
    differ = np.isfinite(ours) != np.isfinite(real)
    values = logits[differ]
    return bool(values.max() - values.min() < NEAR)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_a_stage_is_vllms(stage: Both) -> None:
    """The same tokens barred, the others equal to rounding."""
    num_rows, close = 0, 0
    for seed in range(BATCHES):
        rows = random_batch(seed)
        logits = random_input(seed, rows)
        ours, real = stage(rows, logits)
        num_rows += len(rows)
        same = (np.isfinite(ours) == np.isfinite(real)).all(axis=1)
        for i in np.flatnonzero(~same):
            assert beside_a_limit(ours[i], real[i], logits[i]), (
                f"batch {seed}, row {i}: other tokens are barred than vLLM bars, and not for rounding: "
                f"{rows[i].sampling_params}"
            )
        close += int((~same).sum())
        np.testing.assert_allclose(ours[same], real[same], rtol=1e-6, atol=2e-6, err_msg=str(seed))
    print(f"{stage.__name__}: {BATCHES} batches, {num_rows} rows, {close} beside a limit")
    assert close <= num_rows // 1000, f"{close} of {num_rows} rows differ beside a limit"


def test_the_race_is_vllms() -> None:
    """With the streams of equally seeded generators: the same token of the same probabilities."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import random_sample

    for seed in range(BATCHES):
        logits = random_input(seed, random_batch(seed), barred=0.5)
        probs = ops.softmax(logits)
        rows = range(len(probs))
        generators = {i: torch.Generator().manual_seed(seed * 8 + i) for i in rows}
        real = random_sample(torch.tensor(probs), generators)
        own = {i: TorchGenerator(seed * 8 + i) for i in rows}
        assert ops.random_sample(probs, own, TorchGenerator(0)).tolist() == real.tolist(), seed


@pytest.mark.parametrize("path", ["cpu", "native"])
def test_the_whole_sampler_draws_vllms_tokens(path: str) -> None:
    """`Sampler.forward` from logits to tokens, its generators seeded as ours are.

    Through `forward_cpu` every row has a seed, since it ignores them otherwise; through `forward_native`,
    which is what a GPU runs for seeded rows without top-k and top-p kernels, greedy rows stand between.
    """
    import torch

    num_rows, drawn, ties = 0, 0, list[str]()
    for seed in range(WHOLE // 2):
        rows = random_batch(seed, False if path == "cpu" else None, seeded=True)
        logits = random_input(seed, rows, barred=0.02)
        vocab = logits.shape[1]
        sampler, theirs = vllm_sampler(rows, vocab)
        if path == "native":
            sampler.topk_topp_sampler.forward = sampler.topk_topp_sampler.forward_native
        real = sampler(torch.tensor(logits), theirs).sampled_token_ids.numpy()[:, 0]
        metadata = SamplingMetadata.build(rows, vocab)
        ours = Sampler()(logits, metadata).sampled_token_ids
        num_rows += len(rows)
        drawn += sum(row.sampling_params.temperature > 0 for row in rows)
        for i in np.flatnonzero(ours != real):
            params = rows[i].sampling_params
            assert params.seed is not None
            assert params.temperature > 0, f"batch {seed}, row {i}: a greedy token differs"
            fresh = SamplingMetadata.build(rows, vocab)
            processed = Sampler.apply_logits_processors(logits, fresh)
            _, left = Sampler().sample(processed, fresh)
            margin = race_margin(left[i], params.seed, int(ours[i]), int(real[i]))
            ties.append(
                f"batch {seed}, row {i}: ours {ours[i]}, vLLM's {real[i]}, {margin:.1e} apart"
            )
            assert margin < NEAR, f"{ties[-1]}: {params}"
    print(
        f"{path}: {WHOLE // 2} batches, {num_rows} rows, {drawn} drawn, {len(ties)} near ties {ties}"
    )
    assert len(ties) <= drawn // 1000 + 1, ties


# -- log probabilities ----------------------------------------------------------------------------

MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


@pytest.mark.parametrize("greedy", [None, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_of_logprobs_is_vllms(mode: str, greedy: bool | None) -> None:
    """In a mixed batch, and in one of greedy rows, where "processed" is before the temperature."""
    import torch

    seen = 0
    for seed in range(either(20, 500)):
        rows = random_batch(seed, greedy, seeded=True)
        logits = random_input(seed, rows, barred=0.02)
        sampler, theirs = vllm_sampler(rows, logits.shape[1], mode)
        sampler.topk_topp_sampler.forward = sampler.topk_topp_sampler.forward_native
        real = sampler(torch.tensor(logits), theirs)
        ours = Sampler(logprobs_mode=mode)(logits, SamplingMetadata.build(rows, logits.shape[1]))
        assert (ours.logprobs is None) == (real.logprobs_tensors is None), seed
        if ours.logprobs is None:
            continue
        same = ours.sampled_token_ids == real.sampled_token_ids.numpy()[:, 0]
        ids, values, ranks = (each[same] for each in real.logprobs_tensors.tolists()[:3])
        np.testing.assert_allclose(ours.logprobs.logprobs[same], values, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(ours.logprobs.logprob_token_ids[same, 0], ids[:, 0])
        # Of two equal values either token may stand first.
        apart = np.isfinite(values[:, 1:])
        steps = np.abs(np.diff(np.where(apart, values[:, 1:], 0.0), axis=1)) > NEAR
        apart[:, 1:] &= steps
        apart[:, :-1] &= steps
        got = ours.logprobs.logprob_token_ids[same, 1:]
        assert (got == ids[:, 1:])[apart].all(), seed
        assert (np.abs(ours.logprobs.sampled_token_ranks[same] - ranks) <= 1).all(), seed
        seen += len(ids)
    assert seen > 20, seen


@pytest.mark.parametrize("mode", MODES)
def test_logprobs_of_chosen_tokens_are_vllms(mode: str) -> None:
    """Lists of several lengths in one batch, and rows without."""
    import torch

    rng = np.random.default_rng(0)
    for seed in range(either(20, 500)):
        rows = random_batch(seed, seeded=True)
        for row in rows:
            row.sampling_params.logprobs = None
            if rng.random() < 0.6:
                row.sampling_params.logprob_token_ids = rng.integers(
                    0, 24, int(rng.integers(1, 9))
                ).tolist()
        rows[0].sampling_params.logprob_token_ids = [5, 1, 5]
        logits = random_input(seed, rows, barred=0.02)
        sampler, theirs = vllm_sampler(rows, logits.shape[1], mode)
        sampler.topk_topp_sampler.forward = sampler.topk_topp_sampler.forward_native
        real = sampler(torch.tensor(logits), theirs)
        ours = Sampler(logprobs_mode=mode)(logits, SamplingMetadata.build(rows, logits.shape[1]))
        assert ours.logprobs is None
        assert ours.specific_logprobs is not None
        same = ours.sampled_token_ids == real.sampled_token_ids.numpy()[:, 0]
        ids, values, ranks = (each[same] for each in real.logprobs_tensors.tolists()[:3])
        np.testing.assert_array_equal(ours.specific_logprobs.logprob_token_ids[same], ids)
        np.testing.assert_allclose(
            ours.specific_logprobs.logprobs[same], values, rtol=1e-5, atol=1e-5
        )
        assert (np.abs(ours.specific_logprobs.sampled_token_ranks[same] - ranks) <= 1).all(), seed


def test_a_neighbours_chosen_tokens_take_the_others_logprobs_away() -> None:
    """What vLLM's sampler does, and ours does not: it hands out one of the two, for all rows."""
    import torch

    rows = random_batch(3, seeded=True)[:2]
    rows[0].sampling_params.logprobs = 5
    rows[1].sampling_params.logprobs, rows[1].sampling_params.logprob_token_ids = None, [4]
    logits = random_logits(3, 2)
    sampler, theirs = vllm_sampler(rows)
    real = sampler(torch.tensor(logits), theirs)
    assert real.logprobs_tensors.logprobs.shape == (2, 2)
    assert real.logprobs_tensors.logprobs[0, 1] == -np.inf, "row 0 asked for five"
    ours = Sampler()(logits, SamplingMetadata.build(rows, logits.shape[1]))
    assert ours.logprobs is not None
    assert ours.logprobs.logprobs.shape == (2, 6)
    assert ours.specific_logprobs is not None
    assert ours.specific_logprobs.logprob_token_ids[1, 1] == 4
