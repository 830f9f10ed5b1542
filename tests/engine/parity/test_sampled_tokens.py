"""Parity of sampled tokens: the report of a race, and what is the same in any company."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from course.parity.sampled import Race, make_knobs
from course.parity.tokens import compare, main, make_prompts, report, run_comparison
from course.parity.tokens_run import Completion, Result, Scenario
from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.sample.generator import TorchGenerator
from tests.engine.helpers.engine.text_helpers import byte_tokenizer
from tests.engine.helpers.thorough import either

SEED, VOCAB = 5, 40


def one(probs: dict[int, float], token: int) -> Completion:
    """A completion of one token, drawn from these probabilities."""
    top = {t: math.log(p) for t, p in sorted(probs.items(), key=lambda item: -item[1])}
    return Completion([token], [top[token]], [top], "length", 0)


def result(completion: Completion) -> Result:
    return Result([completion], 0, 1.0)


SCENARIO = Scenario(
    "together", {}, [[1, 7]], [1], sampling=[{"seed": SEED, "temperature": 0.5, "top_k": 3}]
)


def test_a_race_that_is_as_good_as_even_is_a_near_tie() -> None:
    """Probabilities that stand to each other as the noise does: either token may win."""
    noise = TorchGenerator(SEED).standard_exponential(VOCAB).astype(np.float64)
    share = float(noise[8] / (noise[8] + noise[9]))
    probs, other = {8: share, 9: 1 - share}, {8: share * (1 - 1e-6), 9: 1 - share * (1 - 1e-6)}
    found = compare(SCENARIO, result(one(probs, 8)), result(one(other, 9)), VOCAB)
    (text,) = found.mismatches
    for part in (
        "prompt 0 (2 tokens, [1, 7]), seed=5, temperature=0.5, top_k=3: output token 0: "
        "mini_vllm 8, vLLM 9; a near tie; noise",
        f"8: {noise[8]:.6g}, 9: {noise[9]:.6g}",
        f"mini_vllm drew from {{8: {share:.6g}, 9: {1 - share:.6g}}}",
        "quotients",
        "vLLM drew from",
    ):
        assert part in text, text
    assert len(found.near_ties) == 1
    assert "output token 0: " in found.near_ties[0]
    assert not found.equal
    assert report([found]).endswith("NOT equal")


def test_another_token_than_rounding_can_explain_is_no_near_tie() -> None:
    probs = {8: 0.5, 9: 0.3, 10: 0.2}
    noise = TorchGenerator(SEED).standard_exponential(VOCAB)
    winner = max(probs, key=lambda token: probs[token] / noise[token])
    other = next(token for token in probs if token != winner)
    found = compare(SCENARIO, result(one(probs, winner)), result(one(probs, other)), VOCAB)
    assert "; no near tie; noise" in found.mismatches[0]
    assert found.near_ties == []
    gone = one({winner: 1.0}, winner)
    found = compare(SCENARIO, result(gone), result(one(probs, other)), VOCAB)
    assert f"{other}: below the 20 likeliest" in found.mismatches[0]
    assert "no near tie" in found.mismatches[0]


def test_the_noise_of_a_position_is_one_vector_of_the_stream() -> None:
    race, stream = Race(SEED, VOCAB), TorchGenerator(SEED)
    vectors = [stream.standard_exponential(VOCAB).tolist() for _ in range(4)]
    assert race.noise(3).tolist() == vectors[3]
    assert race.noise(0).tolist() == vectors[0]


def test_parameters_are_varied_and_seeded() -> None:
    many = make_knobs(200)
    assert make_knobs(200) == many != make_knobs(200, seed=1)
    assert len({knobs["seed"] for knobs in many}) == 200
    assert all(0.3 <= knobs["temperature"] <= 1.5 for knobs in many)
    for name in (
        "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    ):  # fmt: skip
        assert 40 < sum(name in knobs for knobs in many) < 120, name
    for knobs in many:
        SamplingParams(**knobs)


def test_drafts_are_not_sampled(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--sampled", "--speculative-config", "{}"])
    assert stop.value.code == 2
    assert "drafts are judged by other draws" in capsys.readouterr().err


# -- the same tokens in any company ---------------------------------------------------------------

COUNT = either(8, 120)
SITUATIONS: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1},
    "in a crowd": {"max_num_seqs": 64},
    "in chunks": {"max_num_seqs": 16, "max_num_batched_tokens": 16},
    "without a prefix cache": {"max_num_seqs": 64, "enable_prefix_caching": False},
    "preempted": {"max_num_seqs": 64, "num_gpu_blocks": 16},
}


def test_seeded_tokens_are_the_same_in_any_company() -> None:
    """Alone, in a crowd, in chunks of 16 tokens and preempted: the seed alone decides, but for near ties."""
    prompts = make_prompts(byte_tokenizer().encode, 264, COUNT, seed=3, longest=90)
    many = [SamplingParams(**knobs, max_tokens=12) for knobs in make_knobs(COUNT, seed=3)]
    unseeded = SamplingParams(max_tokens=12)
    said: dict[str, list[list[int]]] = {}
    for name, settings in SITUATIONS.items():
        llm = LLM(max_model_len=128, **{"num_gpu_blocks": 400} | settings)
        crowd: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
        params = many + [unseeded] * COUNT  # neighbours that draw from the engine's own stream
        outputs = llm.generate(crowd + crowd[::-1], params, use_tqdm=False)
        said[name] = [list(output.outputs[0].token_ids) for output in outputs[:COUNT]]
        preempted = llm.llm_engine.engine_core.scheduler.num_preemptions
        assert (preempted > 0) == (name == "preempted"), name
    for name, tokens in said.items():
        differ = [i for i in range(COUNT) if tokens[i] != said["alone"][i]]
        assert len(differ) <= COUNT // 50, f"{name}: prompts {differ} say something else than alone"
    assert len({tuple(tokens) for tokens in said["alone"]}) > COUNT // 2, "they all say the same"


# -- real vLLM ------------------------------------------------------------------------------------


@pytest.mark.vllm
def test_sampled_tokens_are_vllms() -> None:
    """Random temperatures, top-k, top-p, min-p, penalties and seeds, together, alone and preempted."""
    found = run_comparison(
        str(DEFAULT_MODEL), either(40, 300), either(8, 40), either(12, 24), sampled=True
    )
    print(report(found))
    assert all(c.equal for c in found), report(found)
    assert found[0].tokens > either(400, 4000)
    assert found[2].preemptions[0] > 0, "nobody was preempted"
