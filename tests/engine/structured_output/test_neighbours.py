"""Rules where the engine is several processes, plans ahead or streams; and rules that are wrong, which no
requests but their own may feel."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import pytest

from mini_vllm import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    LLMEngine,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
)
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.lora.request import LoRARequest
from mini_vllm.structured_output.backend_native import NativeBackend, NativeGrammar
from tests.engine.helpers.thorough import either
from tests.engine.structured_output.test_engine import NATIVE, PART, bound, generate, texts

RULES: list[dict[str, Any] | None] = [
    {"regex": PART}, None, {"choice": ["repair", "return"]}, {"json_object": True},
]  # fmt: skip
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
EAGLE = {
    "method": "eagle",
    "model": str(DEFAULT_MODEL.parent / "tiny-llama-eagle"),
    "num_speculative_tokens": 3,
}


@pytest.fixture(scope="module")
def plain() -> list[str]:
    return texts(generate(LLM(max_num_seqs=8, **NATIVE), [bound(rule) for rule in RULES]))


@pytest.mark.parametrize(
    "settings",
    either(
        [{"tensor_parallel_size": 2, "speculative_config": NGRAM}],
        [{"tensor_parallel_size": 2, "speculative_config": NGRAM}, {"pipeline_parallel_size": 2}],
    ),
    ids=lambda settings: "-".join(settings),
)
def test_ranks_obey_rules(settings: dict[str, Any], plain: list[str]) -> None:
    llm = LLM(max_num_seqs=8, **NATIVE, **settings)
    try:
        assert texts(generate(llm, [bound(rule) for rule in RULES])) == plain
    finally:
        llm.llm_engine.engine_core.shutdown()


def ask_all(params: list[SamplingParams], **settings: Any) -> list[list[RequestOutput]]:
    """Each request's outputs, from an engine that streams."""

    async def ask_one(llm: AsyncLLM, number: int) -> list[RequestOutput]:
        stream = llm.generate("The scheduler", params[number], str(number))
        return [output async for output in stream]

    async def ask() -> list[list[RequestOutput]]:
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(max_num_seqs=8, **NATIVE, **settings))
        try:
            return list(await asyncio.gather(*(ask_one(llm, n) for n in range(len(params)))))
        finally:
            llm.shutdown()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "settings",
    either([{}], [{}, {"data_parallel_size": 2}]),
    ids=lambda settings: f"{len(settings)}",
)
def test_engines_that_stream_obey_rules(settings: dict[str, Any], plain: list[str]) -> None:
    outputs = ask_all([bound(rule) for rule in RULES * 2], **settings)
    assert [stream[-1].outputs[0].text for stream in outputs] == plain * 2


def test_a_stream_whose_rule_does_not_compile_ends_alone(
    plain: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_grammar = NativeBackend.compile_grammar

    def fail(self: Any, kind: Any, spec: str) -> Any:
        if spec == "planted":
            raise MemoryError
        return compile_grammar(self, kind, spec)

    monkeypatch.setattr(NativeBackend, "compile_grammar", fail)
    outputs = ask_all([bound({"regex": "planted"}), *(bound(rule) for rule in RULES)])
    [failed] = outputs[0]
    assert (failed.finished, failed.outputs[0].finish_reason) == (True, "error")
    assert "structured_outputs.regex 'planted': native failed: MemoryError" in str(
        failed.outputs[0].stop_reason
    )
    assert [stream[-1].outputs[0].text for stream in outputs[1:]] == plain


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fill_bitmask", {}), ("accept_tokens", {}), ("fill_bitmask", {"async_scheduling": True}),
        ("fill_bitmask", {"speculative_config": EAGLE}),
        ("validate_tokens", {"speculative_config": EAGLE}),
        ("validate_tokens", {"speculative_config": EAGLE, "async_scheduling": True}),
    ],
)  # fmt: skip
def test_a_grammar_that_fails_in_a_step_ends_its_own_request(
    method: str, settings: dict[str, Any], plain: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = getattr(NativeGrammar, method)

    def fail(self: Any, *args: Any) -> Any:
        if self.num_processed_tokens > 2 and self._automaton is planted[0]:
            raise RuntimeError("out of stack")
        planted.append(self._automaton)  # the first that is asked is the first request's
        return call(self, *args)

    planted: list[Any] = []
    llm = LLM(max_num_seqs=8, **NATIVE, **settings)
    monkeypatch.setattr(NativeGrammar, method, fail)
    outputs = generate(llm, [bound({"regex": "[a-z]{9}"}), *(bound(rule) for rule in RULES)])
    failed = outputs[0].outputs[0]
    assert failed.finish_reason == "error"
    assert failed.stop_reason == (
        "structured_outputs.regex '[a-z]{9}': the grammar failed: RuntimeError out of stack"
    )
    assert texts(outputs)[1:] == plain


def test_a_rule_beside_an_adapter() -> None:
    folder = DEFAULT_MODEL.parent / "tiny-llama-lora" / "questions"
    llm = LLM(max_num_seqs=4, enable_lora=True, **NATIVE)
    adapters = [LoRARequest("a", 1, str(folder)), None] * 2
    rules = [{"regex": PART}, {"regex": PART}, None, None]
    params, prompts = [bound(rule) for rule in rules], ["The scheduler"] * 4
    outputs = llm.generate(prompts, params, lora_request=adapters, use_tqdm=False)
    free = llm.generate(prompts[2:], params[2:], lora_request=adapters[2:], use_tqdm=False)
    assert all(re.fullmatch(PART, text) for text in texts(outputs)[:2])
    assert texts(outputs)[2:] == texts(free)


# -- rules that are wrong ---------------------------------------------------------------------------

GOOD = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"enum": [1, "x", None]}},
    "required": ["a"],
    "items": {"type": "integer", "minimum": 0},
    "additionalProperties": False,
}
JUNK: list[Any] = [
    None, True, -1, 1e308, "", "object", "a{", [], {}, [[]], {"$ref": "#"}, {"type": 3}, 2**70, "\\",
    {"$ref": "#/properties/a"}, {"pattern": "(("}, {"anyOf": []}, {"type": ["string", "nonsense"]},
]  # fmt: skip


def mutate(rng: random.Random, schema: Any) -> Any:
    """The schema with something else somewhere in it."""
    if rng.random() < 0.3 or not isinstance(schema, dict | list) or not schema:
        return rng.choice(JUNK)
    schema = json.loads(json.dumps(schema))
    if isinstance(schema, list):
        place: Any = rng.randrange(len(schema))
    else:
        place = rng.choice(list(schema))
        if rng.random() < 0.2:
            schema[str(rng.choice(list(GOOD)))] = rng.choice(JUNK)
    schema[place] = mutate(rng, schema[place])
    return schema


def test_malformed_schemas_disturb_no_neighbour() -> None:
    """Each is refused at the door, ends its own request, or is obeyed."""
    rng = random.Random(42)
    engine = LLM(max_num_seqs=16, **NATIVE).llm_engine
    [wanted] = finish(engine, [bound(None, max_tokens=12)])
    refused = failed = obeyed = 0
    for _ in range(either(8, 50)):
        params = [bound(None, max_tokens=12)]
        while len(params) < 20:
            schema = mutate(rng, GOOD)
            try:
                rule = StructuredOutputsParams(json=schema)
            except (TypeError, ValueError):
                refused += 1
                continue
            params.append(SamplingParams(max_tokens=6, structured_outputs=rule))
        outputs = finish(engine, params)
        neighbour = next(o for o in outputs if o.request_id == "0")
        assert neighbour.outputs[0].token_ids == wanted.outputs[0].token_ids
        refused += len(params) - len(outputs)
        failed += sum(o.outputs[0].finish_reason == "error" for o in outputs)
        obeyed += sum(o.outputs[0].finish_reason in ("stop", "length") for o in outputs) - 1
    assert refused > 50
    assert obeyed > 10
    assert failed < obeyed, "what the door can see it refuses"


def finish(engine: LLMEngine, params: list[SamplingParams]) -> list[RequestOutput]:
    """Queue what the door lets in, and step to the end; the last outputs."""
    for number, asked in enumerate(params):
        try:
            engine.add_request(str(number), "The scheduler", asked)
        except ValueError as error:
            assert "structured_outputs" in str(error)  # noqa: PT017
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += [output for output in engine.step() if output.finished]
    return outputs
