"""Lab 00-03, the batch: the draw, and all functions together in the running engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mini_vllm.config.engine import EngineConfig
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.model_loader import LlamaConfig, expected_tensors
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.sample.metadata import SamplingMetadata, make_generator
from mini_vllm.sample.sampler import Sampler as ReferenceSampler
from mini_vllm.sampling_params import SamplingParams

INF = math.inf


@dataclass
class Row:
    """A request that samples."""

    sampling_params: SamplingParams
    prompt_token_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    output_token_ids: list[int] = field(default_factory=list)
    generator: np.random.Generator | None = None

    def __post_init__(self) -> None:
        self.generator = make_generator(self.sampling_params)


def obvious_probs(logits: list[float], params: SamplingParams) -> list[float]:
    """The distribution by the book: one row, Python floats, nothing clever."""

    def probs_of(values: list[float]) -> list[float]:
        weights = [math.exp(x - max(values)) for x in values]
        return [w / math.fsum(weights) for w in weights]

    logits = [x / params.temperature for x in logits]
    probs = probs_of(logits)
    logits = [
        x if q >= params.min_p * max(probs) else -INF for x, q in zip(logits, probs, strict=True)
    ]
    if 0 < params.top_k < len(logits):
        kth = sorted(logits)[-params.top_k]
        logits = [x if x >= kth else -INF for x in logits]
    probs, held, allowed = probs_of(logits), 0.0, []
    for token in sorted(range(len(logits)), key=lambda t: -logits[t]):
        if held < params.top_p:
            allowed.append(token)
        held += probs[token]
    return probs_of([x if t in allowed else -INF for t, x in enumerate(logits)])


# ---- the draw ------------------------------------------------------------------------------------


def test_the_draw_divides_by_exponential_noise(lab: ModuleType) -> None:
    """random_sample takes the argmax of probs / noise, with noise of shape [n, V] from `rng`."""
    probs = np.random.default_rng(0).dirichlet(np.ones(5), 300).astype(np.float32)
    noise = np.random.default_rng(7).standard_exponential((300, 5))
    got = np.asarray(lab.random_sample(probs, {}, np.random.default_rng(7))).tolist()
    narrow = np.random.default_rng(7).standard_exponential((300, 5), dtype=np.float32)
    assert got != (probs / narrow).argmax(axis=1).tolist(), (
        "you divide and take the argmax as you should, but by float32 noise. numpy draws other numbers "
        "for float32 than for float64: leave out dtype, as the recipe does"
    )
    assert got == (probs / noise).argmax(axis=1).tolist(), (
        "the token of a row is the argmax of probs / noise, the noise one [n, V] call of "
        "rng.standard_exponential. The smallest of exponentials with rates p_t is that of token t "
        "with probability p_t; the argmax of the noise alone, or of a product, is not."
    )


def test_a_seeded_row_draws_from_its_own_generator(lab: ModuleType) -> None:
    """A row with a generator takes V numbers from it, whatever other rows are in the batch."""
    probs = np.full((4, 6), 1 / 6, np.float32)

    def draw(seeded: dict[int, int], rng_seed: int) -> list[int]:
        generators = {row: np.random.default_rng(seed) for row, seed in seeded.items()}
        drawn = lab.random_sample(probs, generators, np.random.default_rng(rng_seed))
        return np.asarray(drawn).tolist()

    expected = [
        int((1 / np.random.default_rng(seed).standard_exponential(6)).argmax())
        for seed in range(40)
    ]
    for seed, token in enumerate(expected):
        alone, beside = draw({2: seed}, 1), draw({0: seed + 7, 2: seed, 3: 5}, 2)
        assert alone[2] == beside[2] == token, (
            f"row 2 with seed {seed} drew {alone[2]} and {beside[2]}, should draw {token} both "
            "times: replace the row's noise by V numbers of its own generator, so that a request's "
            "tokens do not depend on its neighbours"
        )
        assert alone[:2] == draw({}, 1)[:2], "a seeded row must not shift the noise of the others"


def test_the_shared_stream_is_used_only_where_it_is_needed(lab: ModuleType) -> None:
    """random_sample takes one [n, V] block from `rng` if any row lacks a seed, and nothing if
    all have one."""
    probs = np.full((2, 3), 1 / 3, np.float32)

    def rest_of_stream(generators: dict[int, np.random.Generator]) -> float:
        rng = np.random.default_rng(3)
        lab.random_sample(probs, generators, rng)
        return rng.standard_exponential()

    stream = np.random.default_rng(3).standard_exponential(7)
    both = {0: np.random.default_rng(0), 1: np.random.default_rng(1)}
    assert rest_of_stream(both) == stream[0], (
        "every row has its own generator, so nothing may be drawn from rng"
    )
    assert rest_of_stream({0: np.random.default_rng(0)}) == stream[6], (
        "one row has no generator: draw the noise of the whole batch, n * V numbers, from rng, so "
        "that a row's share does not depend on which others have seeds"
    )


def test_noise_of_exactly_zero_draws_no_barred_token(lab: ModuleType) -> None:
    """A masked token is not drawn even where its noise is exactly 0, so 0 / 0 must not win."""

    class Silent(np.random.Generator):
        """Draws nothing but zeros; numpy's own does so once in 2**53 numbers."""

        def standard_exponential(
            self, size: Any = None, dtype: Any = np.float64, method: str = "zig", out: Any = None
        ) -> Any:
            if out is None:
                return np.zeros(() if size is None else size)
            out[...] = 0
            return out

        def exponential(self, scale: float = 1.0, size: Any = None) -> Any:
            return self.standard_exponential(size)

    probs = np.array([[0, 0, 0.25, 0.75]], np.float32)
    with np.errstate(all="ignore"):
        drawn = lab.random_sample(probs, {}, Silent(np.random.PCG64(0)))
    assert np.asarray(drawn).tolist() == [3], (
        f"noise of exactly 0 drew token {drawn}, should be 3: 0 / 0 is NaN, which argmax takes for "
        "the largest. Raise the noise to at least np.finfo(np.float64).tiny first."
    )


# The chi-square statistic exceeds these once in a thousand runs, by degrees of freedom.
CHI_SQUARE_0_001 = [math.nan, 10.828, 13.816, 16.266, 18.467, 20.515, 22.458, 24.322]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=2, top_k=6, top_p=0.9, min_p=0.1),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p", "all"],
)
def test_100_000_draws_follow_the_distribution(lab: ModuleType, params: SamplingParams) -> None:
    """The counts of 100,000 draws fit the exact probabilities, by a chi-square test."""
    logits = [2.0, 1.0, 0.5, 0.0, -0.5, -1.0, 3.0, 1.5]
    metadata = SamplingMetadata.build([Row(params)], len(logits))
    probs = lab.sampling_probs(
        np.array([logits], np.float32),
        metadata.temperature,
        metadata.min_p,
        metadata.top_k,
        metadata.top_p,
    )
    drawn = lab.random_sample(np.tile(probs, (100_000, 1)), {}, np.random.default_rng(5))
    observed = np.bincount(drawn, minlength=len(logits))
    expected = np.array(obvious_probs(logits, params)) * len(drawn)
    possible = expected > 0
    assert not observed[~possible].any(), (
        f"tokens {np.flatnonzero(observed * ~possible).tolist()} were drawn though they are barred"
    )
    limit = CHI_SQUARE_0_001[possible.sum() - 1]
    statistic = float(((observed - expected)[possible] ** 2 / expected[possible]).sum())
    assert statistic < limit, (
        f"the draws do not follow the distribution: chi-square {statistic:.0f}, by chance it stays "
        f"below {limit}. Counts {observed.tolist()}, expected "
        f"{expected.round().astype(int).tolist()}."
    )


# ---- in the engine -------------------------------------------------------------------------------


def knobs(params: SamplingParams) -> str:
    """The knobs of a request that are turned, as a reader would type them."""
    off = SamplingParams()
    names = ("temperature", "min_p", "top_k", "top_p", "seed", "presence_penalty", "logprobs")
    turned = [n for n in names if n == "temperature" or getattr(params, n) != getattr(off, n)]
    return ", ".join(f"{name}={getattr(params, name)}" for name in turned)


def random_params(rng: np.random.Generator, **fixed: Any) -> SamplingParams:
    """Any mixture of the knobs; one request in four is greedy."""
    if rng.random() < 0.25:
        return SamplingParams(temperature=0, repetition_penalty=1.1, **fixed)
    return SamplingParams(
        temperature=float(rng.choice([0.01, 0.3, 0.7, 1.0, 1.5])),
        top_k=int(rng.choice([0, 1, 3, 20])),
        top_p=float(rng.choice([1.0, 0.95, 0.7, 0.2])),
        min_p=float(rng.choice([0.0, 0.0, 0.05, 0.3])),
        seed=int(rng.integers(1000)) if rng.random() < 0.5 else None,
        presence_penalty=float(rng.choice([0.0, 0.5])),
        logprobs=int(rng.integers(3)) if rng.random() < 0.3 else None,
        **fixed,
    )


def test_the_batch_leaves_its_inputs_alone(lab: ModuleType) -> None:
    """No function writes into the logits or probabilities it is given."""
    logits = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    before = logits.copy()
    half, k = np.full(3, 0.5, np.float32), np.full(3, 4)
    for name, call in {
        "softmax": lambda: lab.softmax(logits),
        "compute_logprobs": lambda: lab.compute_logprobs(logits),
        "greedy_sample": lambda: lab.greedy_sample(logits),
        "apply_temperature": lambda: lab.apply_temperature(logits, half),
        "apply_min_p": lambda: lab.apply_min_p(logits, half),
        "apply_top_k": lambda: lab.apply_top_k(logits, k),
        "apply_top_p": lambda: lab.apply_top_p(logits, half),
        "sampling_probs": lambda: lab.sampling_probs(logits, half, half, k, half),
        "random_sample": lambda: lab.random_sample(logits, {}, np.random.default_rng(0)),
    }.items():
        call()
        assert np.array_equal(logits, before), (
            f"{name} wrote into its input: the engine reports logprobs of these same logits. "
            "Work on a copy (np.where, or values.copy())."
        )
    parameters = half.tolist() + k.tolist()
    assert parameters == [0.5] * 3 + [4] * 3, "the parameters are inputs as well"


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_the_engines_sampler(lab: ModuleType, seed: int) -> None:
    """Your Sampler gives the tokens and logprobs of mini_vllm's, for 40 mixed requests over 8 steps."""
    rng = np.random.default_rng(seed)
    params = [random_params(rng) for _ in range(40)]
    mine, theirs = [Row(p) for p in params], [Row(p) for p in params]
    my_metadata, metadata = SamplingMetadata.build(mine, 50), SamplingMetadata.build(theirs, 50)
    my_sampler, sampler = lab.Sampler(seed), ReferenceSampler(seed)
    for step in range(8):
        logits = (rng.standard_normal((40, 50)) * 3).astype(np.float32)
        got, want = my_sampler(logits, my_metadata), sampler(logits, metadata)
        my_tokens, tokens = got.sampled_token_ids.tolist(), want.sampled_token_ids.tolist()
        for i, (mine_i, theirs_i) in enumerate(zip(my_tokens, tokens, strict=True)):
            assert mine_i == theirs_i, (
                f"step {step}, row {i}: you drew token {mine_i}, the engine's sampler {theirs_i}, "
                f"for {knobs(params[i])}. Which of these, left out, makes the two agree?"
            )
        assert (got.logprobs is None) == (want.logprobs is None), (
            "logprobs are returned where a row asks for them, and only there: the given Sampler "
            "does that, has it been changed?"
        )
        if got.logprobs is not None and want.logprobs is not None:
            for name, a, b in zip(want.logprobs._fields, got.logprobs, want.logprobs, strict=True):
                np.testing.assert_allclose(
                    a,
                    b,
                    rtol=1e-4,
                    atol=1e-5,
                    err_msg=f"{name} of the output: see compute_logprobs",
                )
        for row, other, token in zip(mine, theirs, tokens, strict=True):
            row.output_token_ids.append(token)
            other.output_token_ids.append(token)


def test_a_mixed_batch_keeps_greedy_rows_greedy(lab: ModuleType) -> None:
    """A row below temperature 1e-5 takes its argmax, also beside sampled rows; at 1e-5 itself it
    is sampled."""
    params = [SamplingParams(temperature=t) for t in (0, 1, 1)]
    params[2].temperature = 1e-5
    metadata = SamplingMetadata.build([Row(p) for p in params], 2)
    sampler, tied = lab.Sampler(0), np.zeros((3, 2), np.float32)
    drawn = np.array([sampler(tied, metadata).sampled_token_ids for _ in range(40)])
    assert not drawn[:, 0].any(), "a greedy row takes the lowest id of a tie, every time"
    for row in (1, 2):
        assert set(drawn[:, row].tolist()) == {0, 1}, (
            f"a row of temperature {params[row].temperature} draws among its equal tokens, and "
            "did not: is it taken for greedy, or is its noise the same every time?"
        )


def small_model() -> LlamaForCausalLM:
    """Two layers of random weights."""
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
    )
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(float("norm" in name), 0.3, shape).astype(np.float32)
        for name, shape in expected_tensors(config).items()
    }
    return LlamaForCausalLM(config, weights)


def generate(
    parts: EngineParts, requests: list[tuple[list[int], SamplingParams]]
) -> tuple[LLMEngine, dict[str, list[int]]]:
    engine = LLMEngine(small_model(), EngineConfig(max_num_seqs=6, seed=3), parts=parts)
    for number, (prompt, params) in enumerate(requests):
        engine.add_request(str(number), prompt, params)
    tokens: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
    return engine, tokens


def test_runs_in_the_engine(lab: ModuleType) -> None:
    """LLMEngine with your Sampler as a part generates the default engine's tokens."""
    rng = np.random.default_rng(9)
    requests = [
        (rng.integers(3, 60, int(rng.integers(2, 20))).tolist(), random_params(rng, max_tokens=12))
        for _ in range(14)
    ]
    engine, mine = generate(EngineParts(sampler=lab.Sampler), requests)
    assert isinstance(engine.engine_core.model_runner.sampler, lab.Sampler), (
        "the engine did not take your Sampler: it must keep the constructor of the given class"
    )
    _, theirs = generate(DEFAULT_PARTS, requests)
    for request_id, tokens in theirs.items():
        differ = [
            i
            for i, pair in enumerate(zip(mine[request_id], tokens, strict=False))
            if pair[0] != pair[1]
        ]
        at = differ[0] if differ else 0
        assert mine[request_id] == tokens, (
            f"request {request_id} ({knobs(requests[int(request_id)][1])}): its token {at} is "
            f"{mine[request_id][at]}, in the default engine {tokens[at]}"
        )


def test_a_seeded_request_repeats_in_any_company(lab: ModuleType) -> None:
    """A prompt with a seed gives the same tokens when it runs alone and in a crowd."""
    request = ([5, 6, 7], SamplingParams(temperature=1.2, seed=42, max_tokens=12))
    rng = np.random.default_rng(1)
    crowd = [
        (rng.integers(3, 60, 4).tolist(), SamplingParams(temperature=1.0, max_tokens=9))
        for _ in range(4)
    ]
    parts = EngineParts(sampler=lab.Sampler)
    alone = generate(parts, [request])[1]["0"]
    crowded = generate(parts, [*crowd, request])[1]["4"]
    parted = next((i for i in range(len(alone)) if alone[i : i + 1] != crowded[i : i + 1]), None)
    assert parted is None, (
        f"seed 42 gave one text alone and another among requests without seeds: they part at token "
        f"{parted}. A seeded row may use no randomness but that of its own generator"
    )
    assert alone == crowded, "the text has the same length alone and in company"
