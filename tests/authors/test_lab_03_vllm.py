"""Lab 00-03 against real vLLM: equal masks, and draws from the same distribution."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sampling_params import SamplingParams

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).resolve().parents[2]
SOLUTION = ROOT / "phase-00-foundations" / "labs" / "lab-03-sampling-basics" / "solution.py"

# The chi-square statistic exceeds these once in ten thousand runs, by degrees of freedom.
CHI_SQUARE_0_0001 = [0.0, 15.137, 18.421, 21.108, 23.513, 25.745, 27.856, 29.878]
LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 3.0, 1.5], np.float32)


@pytest.fixture(scope="module")
def solution() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lab_00_03_solution", SOLUTION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """vLLM's functions as they are written: compiling them takes half a minute."""
    import torch

    with torch.compiler.set_stance("force_eager"):
        yield


def random_logits(seed: int, n: int, vocab: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((n, vocab)) * 3).astype(np.float32)
    logits[rng.random(logits.shape) < 0.05] = -np.inf
    return logits


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocab", [24, 264])
def test_top_k_and_top_p_leave_the_same_tokens(
    solution: ModuleType, ties: bool, vocab: int
) -> None:
    """300 rows each through top_k, top_p and both: the logits afterwards are equal to the bit."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    logits = random_logits(1, 300, vocab)
    logits = logits.round() if ties else logits
    rng = np.random.default_rng(2)
    k = rng.integers(1, vocab + 1, 300)
    p = rng.uniform(0.05, 1, 300).astype(np.float32)
    k[::7], p[::10] = vocab, 1.0
    for ks, ps in ((k, None), (None, p), (k, p)):
        theirs = apply_top_k_top_p_pytorch(
            torch.tensor(logits),
            None if ks is None else torch.tensor(ks),
            None if ps is None else torch.tensor(ps),
            allow_cpu_sync=True,
        ).numpy()
        ours = logits if ks is None else solution.apply_top_k(logits, ks)
        ours = ours if ps is None else solution.apply_top_p(ours, ps)
        if ties:  # torch.sort puts equal logits in any order; how many stay is fixed
            ours, theirs = np.sort(ours, axis=-1), np.sort(theirs, axis=-1)
        np.testing.assert_array_equal(ours, theirs)


def test_temperature_and_logprobs(solution: ModuleType) -> None:
    """Sampler.apply_temperature, compute_logprobs and greedy_sample give the same numbers."""
    import torch
    from vllm.v1.sample.sampler import Sampler

    logits = np.nan_to_num(random_logits(3, 50, 24), neginf=-30)
    temp = np.linspace(0, 2, 50).astype(np.float32)
    theirs = Sampler.apply_temperature(torch.tensor(logits), torch.tensor(temp), False)
    np.testing.assert_array_equal(solution.apply_temperature(logits, temp), theirs.numpy())
    logprobs = Sampler.compute_logprobs(torch.tensor(logits)).numpy()
    np.testing.assert_allclose(solution.compute_logprobs(logits), logprobs, rtol=1e-6, atol=1e-6)
    greedy = Sampler.greedy_sample(torch.tensor(logits)).tolist()
    assert solution.greedy_sample(logits).tolist() == greedy


def statistic(observed: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """Pearson's chi-square of counts against expected counts, and its limit."""
    possible = expected > 0
    assert not observed[~possible].any(), "a barred token was drawn"
    terms = (observed - expected)[possible] ** 2 / expected[possible]
    return float(terms.sum()), CHI_SQUARE_0_0001[int(possible.sum()) - 1]


def homogeneity(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Chi-square of two lists of counts of equal sums, drawn from one distribution, and its limit."""
    seen = a + b > 0
    terms = (a - b)[seen] ** 2 / (a + b)[seen]
    return float(terms.sum()), CHI_SQUARE_0_0001[int(seen.sum()) - 1]


def test_vllms_random_sample_draws_from_the_same_distribution(solution: ModuleType) -> None:
    """200,000 draws of each random_sample: both follow the exact odds and each other."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import random_sample

    torch.manual_seed(0)
    n = 200_000
    probs = np.tile(solution.softmax(LOGITS[None]), (n, 1))
    ours = np.bincount(solution.random_sample(probs, {}, np.random.default_rng(0)), minlength=8)
    theirs = np.bincount(random_sample(torch.tensor(probs), {}).numpy(), minlength=8)
    exact = np.exp(LOGITS.astype(np.float64))
    exact *= n / exact.sum()
    for value, limit in (
        statistic(ours, exact),
        statistic(theirs, exact),
        homogeneity(ours, theirs),
    ):
        assert value < limit


class Row:
    """A request that samples, without a seed."""

    def __init__(self, params: SamplingParams) -> None:
        self.sampling_params = params
        self.prompt_token_ids: list[int] = [1]
        self.output_token_ids: list[int] = []
        self.generator = None


# (temperature, min_p, top_k, top_p); a top_k of 8 is the whole vocabulary
CONFIGURATIONS = [
    (1.0, 0.0, 8, 1.0),
    (0.5, 0.0, 8, 1.0),
    (1.0, 0.0, 3, 1.0),
    (1.0, 0.0, 8, 0.8),
    (1.0, 0.1, 8, 1.0),
    (2.0, 0.1, 6, 0.9),
]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_vllms_sampler_draws_from_the_same_distribution(
    solution: ModuleType, configuration: tuple[float, float, int, float]
) -> None:
    """100,000 draws through the whole of vLLM's Sampler and through the lab's, compared."""
    import torch
    from vllm import SamplingParams as VllmParams
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
    from vllm.v1.sample.logits_processor.interface import BatchUpdate
    from vllm.v1.sample.metadata import SamplingMetadata as VllmMetadata
    from vllm.v1.sample.sampler import Sampler as VllmSampler

    temperature, min_p, top_k, top_p = configuration
    n = 20_000
    logits = np.tile(LOGITS, (n, 1))

    knobs = {"temperature": temperature, "min_p": min_p, "top_k": top_k, "top_p": top_p}
    row = Row(SamplingParams(**knobs))  # type: ignore[arg-type]
    metadata = SamplingMetadata.build([row] * n, len(LOGITS))
    sampler = solution.Sampler(1)
    ours = sum(
        np.bincount(sampler(logits, metadata).sampled_token_ids, minlength=8) for _ in range(5)
    )

    config = VllmConfig()
    config.scheduler_config.max_num_seqs = n
    processor = MinPLogitsProcessor(config, torch.device("cpu"), False)
    params = VllmParams(**knobs)  # type: ignore[arg-type]
    processor.update_state(
        BatchUpdate(n, removed=[], added=[(i, params, [], []) for i in range(n)], moved=[])
    )
    theirs_metadata = VllmMetadata(
        temperature=torch.full((n,), temperature),
        all_greedy=False,
        all_random=True,
        top_p=torch.full((n,), top_p) if top_p < 1 else None,
        top_k=torch.full((n,), top_k, dtype=torch.int32) if top_k < 8 else None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(n),
        presence_penalties=torch.zeros(n),
        repetition_penalties=torch.ones(n),
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors([processor]),
    )
    torch.manual_seed(1)
    real = VllmSampler()
    theirs = sum(
        np.bincount(
            real(torch.tensor(logits), theirs_metadata).sampled_token_ids.flatten().numpy(),
            minlength=8,
        )
        for _ in range(5)
    )
    assert (np.asarray(ours) > 0).tolist() == (np.asarray(theirs) > 0).tolist()
    value, limit = homogeneity(np.asarray(ours), np.asarray(theirs))
    assert value < limit, f"ours {ours}, vLLM's {theirs}"
