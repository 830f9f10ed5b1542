"""Parity of tokens: `mini_vllm` and real vLLM on the shipped checkpoint, and the report of it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from course.parity.tokens import (
    Comparison,
    compare,
    corpus_texts,
    main,
    make_prompts,
    make_scenarios,
    report,
    run_comparison,
)
from course.parity.tokens_run import Completion, Result, Scenario, run_scenarios, run_worker
from mini_vllm.config.engine import DEFAULT_MODEL
from tests.engine.helpers.engine.text_helpers import byte_tokenizer, write_checkpoint


def prompts(count: int = 200, seed: int = 0, longest: int = 400) -> list[list[int]]:
    return make_prompts(byte_tokenizer().encode, 264, count, seed, longest)


# -- the comparison itself ------------------------------------------------------------------------


def test_prompts_are_varied_and_seeded() -> None:
    many = prompts()
    lengths = [len(prompt) for prompt in many]
    assert len(many) == 200
    assert (min(lengths), max(lengths)) == (1, 400)
    assert sum(length > 100 for length in lengths) > 40
    assert sum(length < 20 for length in lengths) > 30
    assert all(0 <= token_id < 264 for prompt in many for token_id in prompt)
    assert prompts() == many
    assert prompts(seed=1) != many
    assert len({tuple(prompt) for prompt in many}) > 190
    shared = sum(a[:16] == b[:16] for i, a in enumerate(many) for b in many[:i] if len(a) > 16)
    assert shared > 20, "prefix caching has nothing to share"


def test_texts_come_from_the_corpus_or_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(corpus_texts(0, 5)) == 5
    assert corpus_texts(0, 5) == corpus_texts(0, 5)
    monkeypatch.setattr("course.parity.tokens.importlib.util.find_spec", lambda name: None)
    assert all("scheduler" in text for text in corpus_texts(0, 3))


def test_the_scenarios_do_what_they_say(tmp_path: Path) -> None:
    """On a small model: `alone` hits the cache that `together` filled, `preempted` preempts."""
    model = write_checkpoint(tmp_path / "model")
    scenarios = make_scenarios(prompts(24, longest=120), alone=5, max_tokens=12, pool=16)
    together, alone, preempted = run_scenarios(str(model), scenarios, real=False)
    assert [len(r.completions) for r in (together, alone)] == [24, 5]
    assert together.preemptions == alone.preemptions == 0
    assert preempted.preemptions > 0
    assert any(c.num_cached_tokens for c in alone.completions)
    assert max(len(c.token_ids) for c in together.completions) > 12, "none runs longer"
    by_prompt = dict(zip(map(tuple, scenarios[0].prompts), together.completions, strict=True))
    for prompt, completion in zip(scenarios[1].prompts, alone.completions, strict=True):
        n = min(len(completion.token_ids), len(by_prompt[tuple(prompt)].token_ids))
        assert completion.token_ids[:n] == by_prompt[tuple(prompt)].token_ids[:n]


SCENARIO = Scenario("together", {}, [[1, 5, 6], [1, 7]], [3, 3])


def result(second: float = -1.5, **changes: object) -> Result:
    completions = [
        Completion(
            token_ids=[10, 11, 12],
            logprobs=[-0.5, -1.0, -1.0],
            top=[{10: -0.5, 20: -2.0}, {11: -1.0, 21: second}, {12: -1.0, 22: -3.0}],
            finish_reason="length",
            num_cached_tokens=0,
        )
        for _ in range(2)
    ]
    for name, value in changes.items():
        setattr(completions[1], name, value)
    return Result(completions, 0, 1.0)


def test_equal_results_are_equal() -> None:
    found = compare(SCENARIO, result(), result())
    assert found.equal
    assert (found.requests, found.tokens, found.mismatches, found.near_ties) == (2, 6, [], [])
    assert report([found]).endswith("equal")
    assert "NOT" not in report([found])


def test_a_token_that_differs_is_reported_with_both_views() -> None:
    other = result(token_ids=[10, 21, 12])
    found = compare(SCENARIO, other, result())
    assert not found.equal
    (text,) = found.mismatches
    for part in ("prompt 1", "[1, 7]", "output token 1:", "mini_vllm 21", "vLLM 11", "-1.000000",
                 "-1.500000"):  # fmt: skip
        assert part in text
    assert "tie" not in text
    assert found.tokens == 4, "what follows a mismatch is not compared"
    assert text in report([found])
    assert report([found]).endswith("NOT equal")


def test_a_near_tie_is_told_from_a_bug_and_never_hidden() -> None:
    tied = result(second=-1.00005)
    found = compare(SCENARIO, copy.deepcopy(tied), tied)
    assert found.equal
    assert len(found.near_ties) == 2
    assert "output token 1: 11 at -1.000000 and 21 at -1.000050" in found.near_ties[0]
    assert found.near_ties[0] in report([found])
    broken = copy.deepcopy(tied)
    broken.completions[0].token_ids[1] = 21
    found = compare(SCENARIO, broken, tied)
    assert not found.equal, "a tie broken two ways is a mismatch all the same"
    assert "output token 1, a near tie: mini_vllm 21, vLLM 11" in found.mismatches[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"finish_reason": "stop"}, "finish_reason: mini_vllm 'stop', vLLM 'length'"),
        ({"num_cached_tokens": 16}, "num_cached_tokens: mini_vllm 16, vLLM 0"),
        ({"token_ids": [10, 11], "logprobs": [-0.5, -1.0]}, "2 tokens by mini_vllm, 3 by vLLM"),
        ({"logprobs": [-0.5, -1.002, -1.0]}, "its logprob is -1.002000 and -1.000000"),
    ],
)
def test_every_other_difference_counts_too(changes: dict[str, object], says: str) -> None:
    found = compare(SCENARIO, result(**changes), result())
    assert not found.equal
    assert says in found.mismatches[0]


def test_preemptions_and_missing_answers_count() -> None:
    more = result()
    more.preemptions = 2
    assert compare(SCENARIO, more, result()).mismatches == ["2 preemptions in mini_vllm, 0 in vLLM"]
    less = result()
    less.completions.pop()
    assert not compare(SCENARIO, less, result()).equal


def test_a_worker_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"status 1:(.|\n)*no_such_engine_module"):
        run_worker("no_such_engine_module", [], {})


@pytest.mark.parametrize("argv", [["--prompts", "0"], ["--max-tokens", "x"], ["--frobnicate"]])
def test_bad_arguments_end_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_without_vllm_or_a_model_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("course.parity.tokens.importlib.util.find_spec", lambda name: None)
    assert main([]) == 2
    assert "vllm is not installed" in capsys.readouterr().err
    monkeypatch.setattr("course.parity.tokens.importlib.util.find_spec", lambda name: object())
    assert main(["--model", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


# -- the real thing -------------------------------------------------------------------------------


@pytest.mark.vllm
def test_tokens_equal_vllms_on_the_shipped_checkpoint() -> None:
    found: list[Comparison] = run_comparison(str(DEFAULT_MODEL), count=200, alone=40)
    together, alone, preempted = found
    print(report(found))
    assert all(c.equal for c in found), report(found)
    assert together.requests == 200
    assert alone.requests == 40
    assert together.cached_tokens > 0
    assert alone.cached_tokens > 0
    assert preempted.preemptions[0] > 0
