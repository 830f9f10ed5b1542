"""The rejection sampler: its rule, its draws, its distribution, and the parameters of a draft row."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.ops import compute_logprobs, gather_logprobs, softmax
from mini_vllm.sample.rejection_sampler import (
    RejectionSampler,
    generate_inv_q,
    generate_uniform_probs,
    rejection_sample,
    unconditional_to_conditional_rates,
)
from mini_vllm.sample.sampler import Sampler, SamplerOutput
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata
from tests.engine.helpers.sampling.rejection_helpers import Batch, draw_batch, slow_rejection_sample
from tests.engine.helpers.sampling.sampler_helpers import (
    CHI_SQUARE_0_001,
    VOCAB,
    Row,
    random_logits,
    rows_of,
)
from tests.engine.helpers.thorough import either


def step_of(drafts: list[list[int]]) -> SpecDecodeMetadata:
    """A step in which each request computes its last token and these drafts."""
    num = np.array([len(ids) for ids in drafts])
    input_ids = np.array([token for ids in drafts for token in [0, *ids]])
    return SpecDecodeMetadata.build(num, np.cumsum(num + 1), input_ids)


def run(
    rows: list[Row],
    drafts: list[list[int]],
    logits: np.ndarray,
    draft_probs: np.ndarray | None = None,
    sampler: RejectionSampler | None = None,
) -> tuple[SamplerOutput, list[list[int]]]:
    sampler = sampler or RejectionSampler(Sampler(seed=3))
    metadata = SamplingMetadata.build(rows, logits.shape[1])
    out = sampler(step_of(drafts), draft_probs, logits, metadata)
    return out, RejectionSampler.parse_output(out.sampled_token_ids, logits.shape[1])[0]


def test_the_rule_done_slowly() -> None:
    """300 random batches: mixed rows, requests without drafts, with draft probabilities and without."""
    for seed in range(300):
        batch = draw_batch(seed)
        rng = np.random.default_rng(seed)
        vocab = batch.target_logits.shape[1]
        if batch.temperature is not None:
            batch.uniform_probs = generate_uniform_probs(batch.num_draft_tokens, {}, rng)
            batch.inv_q = generate_inv_q(batch.num_draft_tokens, vocab, {}, rng)
        tokens = rejection_sample(**vars(batch))
        got, _ = RejectionSampler.parse_output(tokens, vocab)
        assert got == slow_rejection_sample(batch), f"batch {seed}: {asdict(batch)}"
        assert tokens.shape == (len(got), max(batch.num_draft_tokens) + 1)


def test_greedy_rows_get_what_they_would_have_got_without_drafts() -> None:
    """Drafts right up to a place: the argmax there, and the bonus token where all are right."""
    logits = random_logits(1, 8)
    best = logits.argmax(-1).tolist()
    for right in range(4):
        drafts = [[*best[:right], *((t + 1) % VOCAB for t in best[right:3])], best[4:7]]
        _, got = run(rows_of(*[SamplingParams(temperature=0)] * 2), drafts, logits)
        assert got == [best[: right + 1], best[4:8]]


def test_a_draft_of_probability_0_is_never_kept() -> None:
    """Neither ruled out by the drafter, however likely to the model, nor by the model."""
    batch = Batch(
        np.array([1]),
        [1],
        np.array([[0.5, 0.0, 0.5]], np.float32),
        np.log(np.array([[0.05, 0.9, 0.05]], np.float32)),
        np.array([2]),
        np.array([1.0], np.float32),
        np.array([0.0]),
        np.ones((1, 3), np.float32),
    )
    assert rejection_sample(**vars(batch)).tolist() == [[1, -1]]  # replaced, by chance with itself
    batch.draft_probs = None
    batch.target_logits = np.array([[0, -np.inf, 0]], np.float32)
    batch.uniform_probs = np.array([1e-300])
    assert rejection_sample(**vars(batch)).tolist() == [[0, -1]]


# ---- distribution --------------------------------------------------------------------------------

P = np.array([[0.35, 0.25, 0.15, 0.1, 0.06, 0.04, 0.03, 0.02]])
Q = np.array([[0.2, 0.4, 0.05, 0.15, 0.02, 0.08, 0.03, 0.07]])


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    expected = probs * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("rule", ["certain", "drawn, judged as certain", "probabilistic"])
def test_kept_tokens_are_distributed_as_the_models(rule: str) -> None:
    """First tokens of thousands of requests, and how many drafts are accepted."""
    n = either(2_000, 20_000)
    rng = np.random.default_rng(82)
    drafts = np.full(n, Q[0].argmax()) if rule == "certain" else rng.choice(8, n, p=Q[0])
    logits = np.repeat(np.log(P), 2 * n, axis=0).astype(np.float32)
    probs = np.repeat(Q, n, axis=0).astype(np.float32) if rule == "probabilistic" else None
    rows = rows_of(*[SamplingParams(temperature=1)] * n)
    out, got = run(rows, drafts[:, None].tolist(), logits, probs)
    first = out.sampled_token_ids[:, 0]
    assert chi_square(np.bincount(first, minlength=8), P[0]) < CHI_SQUARE_0_001[7]
    rate = np.mean([len(tokens) == 2 for tokens in got])
    want = {
        "certain": P[0, Q[0].argmax()],
        "drawn, judged as certain": (P * Q).sum(),
        "probabilistic": np.minimum(P, Q).sum(),
    }[rule]
    assert abs(rate - want) < 4 * np.sqrt(want * (1 - want) / n)
    bonus = out.sampled_token_ids[:, 1][out.sampled_token_ids[:, 1] >= 0]
    assert chi_square(np.bincount(bonus, minlength=8), P[0]) < CHI_SQUARE_0_001[7]


@pytest.mark.parametrize("probabilistic", [False, True])
def test_pairs_of_tokens_are_distributed_as_the_models(probabilistic: bool) -> None:
    """A chain: the model's second distribution depends on the first token. What one step leaves open, a
    second step without drafts gives."""
    n = either(2_000, 20_000)
    rng = np.random.default_rng(83)
    model = rng.dirichlet(np.ones(3), size=4)  # row 0: the first token; row 1 + t: after token t
    drafter = rng.dirichlet(np.ones(3), size=4)

    def draw(probs: np.ndarray) -> np.ndarray:
        return np.asarray((probs / rng.standard_exponential(probs.shape)).argmax(-1))

    if probabilistic:
        first = draw(np.repeat(drafter[:1], n, axis=0))
        second = draw(drafter[1 + first])
    else:
        first = np.full(n, drafter[0].argmax())
        second = drafter[1 + first].argmax(-1)
    q = np.stack([np.repeat(drafter[:1], n, axis=0), drafter[1 + first]], 1).reshape(-1, 3)
    p = np.stack([np.repeat(model[:1], n, 0), model[1 + first], model[1 + second]], 1)
    out, _ = run(
        rows_of(*[SamplingParams(temperature=1)] * n),
        np.stack([first, second], 1).tolist(),
        np.log(p.reshape(-1, 3)).astype(np.float32),
        q.astype(np.float32) if probabilistic else None,
    )
    tokens = out.sampled_token_ids[:, :2]
    missing = tokens[:, 1] < 0
    tokens[missing, 1] = draw(model[1 + tokens[missing, 0]])
    counts = np.bincount(tokens[:, 0] * 3 + tokens[:, 1], minlength=9)
    # 8 degrees of freedom: exceeded in one run of a thousand
    assert chi_square(counts, (model[0][:, None] * model[1:]).ravel()) < 26.125


# ---- the parameters of a draft row ---------------------------------------------------------------


def drafted_params(rng: np.random.Generator, temperature: float) -> SamplingParams:
    def sometimes(value: Any, default: Any) -> Any:
        return value if rng.random() < 0.4 else default

    def ids(n: int) -> list[int]:
        return rng.choice(VOCAB, n, replace=False).tolist()

    params = SamplingParams(
        temperature=temperature,
        top_k=sometimes(int(rng.integers(1, VOCAB)), 0),
        top_p=sometimes(rng.uniform(0.1, 1), 1.0),
        presence_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        frequency_penalty=sometimes(rng.uniform(-2, 2), 0.0),
        repetition_penalty=sometimes(rng.uniform(0.5, 2), 1.0),
        allowed_token_ids=sometimes(ids(12), None),
        stop_token_ids=ids(2),
        min_tokens=sometimes(int(rng.integers(1, 6)), 0),
        logprobs=sometimes(int(rng.integers(0, 4)), None),
    )
    words = [[int(t)] for t in rng.integers(0, VOCAB, 2)] + [rng.integers(0, VOCAB, 2).tolist()]
    params._bad_words_token_ids = sometimes(words, None)
    return params


def test_greedy_tokens_equal_one_step_a_token() -> None:
    """What the kept tokens are with all parameters is what the plain sampler says step by step."""
    rng = np.random.default_rng(84)
    for case in range(either(20, 40)):
        n = int(rng.integers(1, 6))
        rows = rows_of(*(drafted_params(rng, 0.0) for _ in range(n)))
        for row in rows:
            row.output_token_ids.extend(rng.integers(0, VOCAB, int(rng.integers(0, 4))).tolist())
        lengths = [int(k) for k in rng.integers(0, 4, n)]
        logits = random_logits(case, n + sum(lengths))
        starts = np.cumsum([0, *(k + 1 for k in lengths)])
        want, drafts = [], []
        for start, row, k in zip(starts[:-1].tolist(), rows, lengths, strict=True):
            right = int(rng.integers(0, k + 1))
            outputs, kept, guess = list(row.output_token_ids), [], []
            for place in range(k + 1):
                params = copy.copy(row.sampling_params)
                if place == k and len(row.output_token_ids) < params.min_tokens:
                    params.min_tokens = 99  # of the bonus row: judged without the drafts
                metadata = SamplingMetadata.build(
                    [Row(params, row.prompt_token_ids, outputs)], VOCAB
                )
                token = int(Sampler()(logits[start + place][None], metadata).sampled_token_ids[0])
                kept.append(token)
                if place < k:
                    guess.append(token if place < right else (token + 1) % VOCAB)
                    if place == right:
                        break
                    outputs.append(token)
            want.append(kept)
            drafts.append([*guess, *rng.integers(0, VOCAB, k - len(guess)).tolist()])
        _, got = run(rows, drafts, logits)
        assert got == want, f"case {case}"


def test_logprobs_are_the_raw_logits_of_the_kept_tokens() -> None:
    """Of each request its own kept tokens, whatever penalties say."""
    logits = random_logits(5, 7)
    rows = rows_of(
        SamplingParams(temperature=0, logprobs=2, presence_penalty=2),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, logprobs=1),
    )
    best = logits.argmax(-1)
    drafts = [[int(best[0]), (int(best[1]) + 1) % VOCAB], [], [int(best[4]), int(best[5])]]
    out, got = run(rows, drafts, logits)
    assert [len(tokens) for tokens in got] == [2, 1, 3]
    _, split = RejectionSampler.parse_output(out.sampled_token_ids, VOCAB, [1], out.logprobs)
    assert split is not None
    raw = compute_logprobs(logits)
    for tokens, at, lists in zip(got, ([0, 1], [3], [4, 5, 6]), split, strict=True):
        for ours, want in zip(lists, gather_logprobs(raw[at], 2, np.array(tokens)), strict=True):
            np.testing.assert_array_equal(ours, want)


def test_placeholders_padding_and_discarded_requests_are_taken_out() -> None:
    """Ids from the vocabulary's end on are the padding of a head that is too long."""
    tokens = np.array([[4, 24, -1], [1, 2, 3], [7, -1, -1]])
    got, logprobs = RejectionSampler.parse_output(tokens, VOCAB, [1])
    assert got == [[4], [], [7]]
    assert logprobs is None


# ---- draws ---------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_tokens_in_any_batch() -> None:
    """A request's draws are its own: by itself, or between others with and without drafts."""
    logits = random_logits(6, 4, 8)
    draft_probs = softmax(random_logits(7, 3, 8))
    seeded = {"temperature": 1.0, "seed": 11}

    def alone(draft_count: int) -> list[list[int]]:
        row = rows_of(SamplingParams(**seeded))[0]
        kept = []
        for _ in range(20):
            drafts = [[1, 2, 3][:draft_count]]
            rows = logits[: draft_count + 1]
            kept += run([row], drafts, rows, draft_probs[:draft_count])[1]
        return kept

    def among(draft_count: int) -> list[list[int]]:
        row = rows_of(SamplingParams(**seeded))[0]
        others = rows_of(SamplingParams(temperature=1.0), SamplingParams(temperature=0))
        kept = []
        sampler = RejectionSampler(Sampler(seed=99))
        for _ in range(20):
            drafts = [[5, 6], [1, 2, 3][:draft_count], []]
            rows = np.concatenate([logits[:3], logits[: draft_count + 1], logits[:1]])
            probs = np.concatenate([draft_probs[:2], draft_probs[:draft_count]])
            kept.append(run([others[0], row, others[1]], drafts, rows, probs, sampler)[1][1])
        return kept

    for draft_count in (0, 1, 3):
        assert alone(draft_count) == among(draft_count)


def test_a_seed_repeats_itself_but_not_the_tokens_without_drafts() -> None:
    """With drafts a step draws other numbers from the request's stream."""
    logits = np.tile(random_logits(6, 1, 8), (2, 1))

    def tokens(drafts: list[int]) -> list[int]:
        row = rows_of(SamplingParams(temperature=1.0, seed=11))[0]
        kept: list[int] = []
        while len(kept) < 30:
            kept += run([row], [drafts], logits[: len(drafts) + 1])[1][0]
        return kept[:30]

    assert tokens([1]) == tokens([1])
    assert tokens([]) == tokens([])
    assert tokens([1]) != tokens([])


def test_synthetic_acceptance_ignores_the_drafts() -> None:
    """Greedy and random rows: each place's share of accepted drafts is its rate."""
    rates = [0.9, 0.45, 0.0]
    config = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=3,
        rejection_sample_method="synthetic",
        synthetic_acceptance_rates=rates,
    )
    assert unconditional_to_conditional_rates(rates) == [0.9, 0.5, 0.0]
    assert unconditional_to_conditional_rates([0.5, 0.0, 0.0]) == [0.5, 0.0, 0.0]
    n = either(1000, 4000)
    for temperature in (0.0, 1.0):
        rows = rows_of(*[SamplingParams(temperature=temperature)] * n)
        logits = np.tile(random_logits(8, 1, 8), (4 * n, 1))
        sampler = RejectionSampler(Sampler(seed=4), config)
        _, got = run(rows, [[0, 1, 2]] * n, logits, sampler=sampler)
        accepted = np.array([len(tokens) - 1 for tokens in got])
        for place, rate in enumerate(rates):
            assert abs((accepted > place).mean() - rate) < 4 * np.sqrt(0.25 / n)
        assert all(tokens[:-1] == [0, 1, 2][: len(tokens) - 1] for tokens in got)


def test_what_is_refused() -> None:
    """More drafts than vLLM takes, and logits of another step."""
    rows = rows_of(SamplingParams(temperature=0))
    with pytest.raises(ValueError, match=r"at most 128 drafts a step, got 129"):
        run(rows, [[1] * 129], random_logits(1, 130))
    with pytest.raises(ValueError, match=r"shape \(3, 24\), got \(4, 24\)"):
        run(rows, [[1, 2]], random_logits(1, 4))
