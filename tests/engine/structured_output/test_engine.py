"""An engine whose requests have rules, with the backend that needs no library."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from mini_vllm import LLM, EngineConfig, LLMEngine, SamplingParams, StructuredOutputsParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.outputs import RequestOutput
from mini_vllm.structured_output.backend_native import NativeBackend

PART = r"[A-Z]{2}-[0-9]{3,4}"
KINDS = ["repair", "return", "question"]
NATIVE = {"structured_outputs_config": {"backend": "native"}}


def bound(rule: dict[str, Any] | None, **settings: Any) -> SamplingParams:
    given = {"temperature": 0, "max_tokens": 24, **settings}
    params = None if rule is None else StructuredOutputsParams(**rule)
    return SamplingParams(**given, structured_outputs=params)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(max_num_seqs=8, **NATIVE)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def generate(llm: LLM, params: list[SamplingParams]) -> list[RequestOutput]:
    return llm.generate(["The scheduler"] * len(params), params, use_tqdm=False)


def test_outputs_obey_their_rules_and_free_requests_are_unchanged(llm: LLM) -> None:
    free = [bound(None), bound(None, temperature=1.0, seed=7, logprobs=2)]
    alone = generate(llm, free)
    beside = generate(
        llm, [bound({"regex": PART}), free[0], bound({"choice": KINDS}, temperature=1.0), free[1]]
    )
    assert re.fullmatch(PART, texts(beside)[0])
    assert texts(beside)[2] in KINDS
    assert [o.outputs[0].finish_reason for o in beside[::2]] == ["stop", "stop"]
    assert texts(beside)[1::2] == texts(alone)
    assert beside[3].outputs[0].token_ids == alone[1].outputs[0].token_ids
    steps_alone, steps = alone[1].outputs[0].logprobs, beside[3].outputs[0].logprobs
    assert steps_alone is not None
    assert steps is not None
    assert [list(step) for step in steps] == [list(step) for step in steps_alone]


def test_several_completions_of_one_rule(llm: LLM) -> None:
    [output] = generate(llm, [bound({"regex": PART}, n=4, temperature=1.0, seed=1)])
    assert len({o.text for o in output.outputs}) > 1
    assert all(re.fullmatch(PART, o.text) for o in output.outputs)


def test_logprobs_are_of_what_the_rule_leaves(llm: LLM) -> None:
    """As at the pin, where the mask is on the logits before the sampler takes its raw ones."""
    [output] = generate(llm, [bound({"regex": "[ab]"}, logprobs=3, prompt_logprobs=1)])
    assert output.outputs[0].logprobs is not None
    first = output.outputs[0].logprobs[0]
    allowed = [p.logprob for p in first.values() if p.logprob > float("-inf")]
    assert len(allowed) == 2
    assert sum(2.718281828**logprob for logprob in allowed) == pytest.approx(1, abs=1e-4)
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids or ())


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"regex": "(a"}, r"structured_outputs\.regex '\(a': .*not closed"),
        (
            {"grammar": "root ::= x"},
            r"structured_outputs\.grammar 'root ::= x': the native backend",
        ),
    ],
)
def test_a_bad_rule_is_refused_before_its_request_is_queued(
    llm: LLM, rule: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        generate(llm, [bound(None), bound(rule)])
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_failed_compile_ends_its_own_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_grammar = NativeBackend.compile_grammar

    def fail(self: Any, kind: Any, spec: str) -> Any:
        if spec == "planted":
            raise RuntimeError("a library's\nown words")
        return compile_grammar(self, kind, spec)

    monkeypatch.setattr(NativeBackend, "compile_grammar", fail)
    params = [bound({"choice": KINDS}), bound({"regex": "planted"}), bound(None)]
    before = generate(llm, [params[2]])
    outputs = generate(llm, params)
    failed = outputs[1].outputs[0]
    assert (failed.text, failed.finish_reason) == ("", "error")
    assert failed.stop_reason == (
        "structured_outputs.regex 'planted': native failed: RuntimeError a library's\\nown words"
    )
    assert texts(outputs)[0] in KINDS
    assert texts(outputs)[2] == texts(before)[0]


def test_a_huge_rule_disturbs_no_neighbour(llm: LLM) -> None:
    huge = {"regex": "(" + "|".join(f"a{i}{{500}}" for i in range(200)) + "){500}"}
    [free, failed] = generate(llm, [bound(None), bound(huge)])
    assert free.outputs[0].finish_reason == "length"
    assert failed.outputs[0].finish_reason == "error"
    assert "structured_outputs.regex" in str(failed.outputs[0].stop_reason)


def test_an_engine_that_waits_for_nothing_but_grammars_gets_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It neither stops nor turns hot: a step waits for the compiler, a thousandth of a second at most."""
    engine = LLMEngine(config=EngineConfig(max_num_seqs=2, **NATIVE))
    held, compile_grammar = threading.Event(), NativeBackend.compile_grammar

    def wait(self: Any, kind: Any, spec: str) -> Any:
        held.wait(10)
        return compile_grammar(self, kind, spec)

    monkeypatch.setattr(NativeBackend, "compile_grammar", wait)
    engine.add_request("0", "The scheduler", bound({"choice": ["a"]}))
    engine.add_request("1", "The scheduler", bound({"choice": ["b"]}))
    for _ in range(5):
        assert engine.step() == []
        assert engine.has_unfinished_requests()
    engine.abort_request("1")
    held.set()
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert [(o.request_id, o.outputs[0].text) for o in outputs if o.finished] == [("0", "a")]
    assert engine.engine_core.kv_cache_manager.usage == 0
    engine.engine_core.shutdown()


def test_a_small_pool_preempts_and_changes_no_text() -> None:
    params = [bound({"regex": "[a-z ]{30,40}"} if i % 2 else None, max_tokens=40) for i in range(8)]
    roomy = LLM(max_num_seqs=8, num_gpu_blocks_override=200, **NATIVE)
    tight = LLM(max_num_seqs=8, num_gpu_blocks_override=14, max_model_len=160, **NATIVE)
    assert texts(generate(tight, params)) == texts(generate(roomy, params))
    assert tight.llm_engine.engine_core.scheduler.num_preemptions > 0


EAGLE = {"method": "eagle", "model": str(DEFAULT_MODEL.parent / "tiny-llama-eagle")}
DRAFT = {"method": "draft_model", "model": str(DEFAULT_MODEL.parent / "tiny-llama-draft")}
NGRAM = {"method": "ngram", "prompt_lookup_max": 3}


@pytest.fixture(scope="module")
def mixed() -> list[SamplingParams]:
    rules: list[dict[str, Any] | None] = [
        {"regex": "(the |scheduler |cache )+end"}, None, {"choice": KINDS}, {"json_object": True},
        {"regex": PART}, None, {"regex": "[a-z ]{20,30}"}, {"choice": ["a", "ab", "abc"]},
    ]  # fmt: skip
    return [bound(rule, max_tokens=16 + 3 * i) for i, rule in enumerate(rules)]


@pytest.mark.parametrize(
    ("ahead", "spec"),
    [(True, None), (False, NGRAM), (False, EAGLE), (True, EAGLE), (False, DRAFT), (True, DRAFT)],
    ids=["ahead", "ngram", "eagle", "eagle-ahead", "draft_model", "draft_model-ahead"],
)
def test_drafts_and_plans_ahead_change_no_text(
    llm: LLM, mixed: list[SamplingParams], ahead: bool, spec: dict[str, Any] | None
) -> None:
    drafting = {} if spec is None else {"speculative_config": {**spec, "num_speculative_tokens": 3}}
    other = LLM(max_num_seqs=8, async_scheduling=ahead, **drafting, **NATIVE)
    assert texts(generate(other, mixed)) == texts(generate(llm, mixed))
    if spec is not None:
        core = other.llm_engine.engine_core
        assert core.grammars is not None
        assert not core.scheduler.requests


def test_the_rest_of_the_parameters_act_beside_a_rule(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    a, b = tokenizer.encode("ab", add_special_tokens=False)
    end = tokenizer.eos_token_id
    rules: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"regex": "[ab]{3}"}, {"logit_bias": {b: 100.0}}, "bbb"),
        ({"regex": "[abc]{3}"}, {"allowed_token_ids": [a, b, end]}, "[ab]{3}"),
        ({"regex": "[ab]{1,9}"}, {"min_tokens": 5, "logit_bias": {end: 100.0}}, "[ab]{5}"),
        ({"regex": "a{9}"}, {"stop": ["aaa"]}, ""),
        ({"regex": "[ab]{2}"}, {"bad_words": ["a"]}, "bb"),
    ]
    for rule, settings, expected in rules:
        [output] = generate(llm, [bound(rule, **settings)])
        assert re.fullmatch(expected, output.outputs[0].text), (rule, settings, output.outputs[0])


def test_requests_with_rules_need_a_tokenizer_and_a_scheduler_that_knows_them() -> None:
    engine = LLMEngine(config=EngineConfig(**NATIVE))
    engine.input_processor.tokenizer = None
    with pytest.raises(ValueError, match="structured_outputs needs a tokenizer"):
        engine.add_request("0", [1, 2], bound({"regex": "a"}))
