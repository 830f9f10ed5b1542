"""The sampler beside real vLLM's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mini_vllm.sample import ops
from mini_vllm.sample.metadata import PenaltyState, SamplingMetadata
from mini_vllm.sample.sampler import Sampler
from tests.engine.helpers.sampling.sampler_helpers import (
    VOCAB,
    generations,
    random_logits,
    random_params,
    rows_of,
)
from tests.engine.helpers.sampling.sampler_vllm import vllm_sampler

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
            ours, real = ops.apply_top_k_top_p(logits, ks, ps), theirs.numpy()
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
        state = PenaltyState(rows, list(range(40)), VOCAB)
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
        logprobs = ops.compute_logprobs(logits)
        theirs = Sampler.compute_logprobs(torch.tensor(logits)).numpy()
        np.testing.assert_allclose(logprobs, theirs, rtol=1e-6, atol=1e-6)
        token_ids = np.random.default_rng(22).integers(0, VOCAB, 50)
        for k in (0, 1, 5):
            ours = ops.gather_logprobs(logprobs, k, token_ids)
            real = Sampler.gather_logprobs(torch.tensor(logprobs), k, torch.tensor(token_ids))
            for got, want in zip(ours, real.tolists()[:3], strict=True):
                np.testing.assert_array_equal(got, want)
        temp = np.linspace(0, 2, 50).astype(np.float32)
        np.testing.assert_array_equal(
            ops.apply_temperature(logits, temp, False),
            Sampler.apply_temperature(torch.tensor(logits), torch.tensor(temp), False).numpy(),
        )

    @pytest.mark.parametrize("seed", range(30, 33))
    def test_the_whole_batch(self, seed: int) -> None:
        """Processed logits, greedy tokens and logprobs of vLLM's own Sampler, step by step."""
        for rows, logits, metadata, out in generations(seed, steps=3):
            sampler, theirs = vllm_sampler(rows)
            import torch

            processed = sampler.apply_logits_processors(torch.tensor(logits), theirs, False)
            ours = Sampler().apply_logits_processors(logits, metadata)
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
        metadata = SamplingMetadata.build(rows, VOCAB)
        sampler, theirs = vllm_sampler(rows)
        real = sampler.apply_temperature(torch.tensor(logits), theirs.temperature, True)
        for processor in theirs.logitsprocs.argmax_invariant:
            real = processor.apply(real)
        real = apply_top_k_top_p_pytorch(real, theirs.top_k, theirs.top_p, allow_cpu_sync=True)
        assert metadata.temperature is not None
        assert metadata.min_p is not None
        ours = ops.apply_temperature(logits, metadata.temperature, True)
        ours = ops.apply_min_p(ours, metadata.min_p)
        ours = ops.apply_top_k_top_p(ours, metadata.top_k, metadata.top_p)
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(real.numpy()))
        np.testing.assert_allclose(
            ops.softmax(ours), real.softmax(-1).numpy(), rtol=1e-5, atol=1e-7
        )
