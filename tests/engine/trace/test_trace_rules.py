"""Traces of requests with rules: what was allowed, what was forced, and who was skipped."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import SamplingParams, StructuredOutputsParams
from mini_vllm.config.engine import EngineConfig
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.trace.data import TraceDataError, from_data, to_data
from mini_vllm.trace.recorder import TraceRecorder
from mini_vllm.trace.text import to_text
from mini_vllm.trace.types import Trace
from tests.engine.helpers.engine.adapters import ask, write_adapter

NATIVE = {"backend": "native"}
PART = StructuredOutputsParams(regex="[A-Z]{2}-[0-9]{3}")


def run(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests():
        engine.step()


def bound(max_tokens: int = 8, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, structured_outputs=PART, **more)


def parts_of(trace: Trace, request_id: str) -> list[Any]:
    return [p for s in trace.steps for p in s.scheduled if p.request_id == request_id]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_each_row_is_told_and_a_single_allowed_token_is_forced(async_scheduling: bool) -> None:
    config = EngineConfig(structured_outputs_config=NATIVE, async_scheduling=async_scheduling)
    engine = LLMEngine(config=config)
    recorder = TraceRecorder(engine)
    engine.add_request("bound", "Part ", bound())
    engine.add_request("free", "Part ", SamplingParams(temperature=0, max_tokens=3))
    run(engine)
    trace = recorder.trace
    allowed = [part.num_allowed_tokens for part in parts_of(trace, "bound")]
    # Letters, letters, the dash, three digits, the end token; a step in flight behind the end has none.
    assert [row for row in allowed if row] == [[26], [26], [1], [10], [10], [10], [1]]
    assert all(not part.num_allowed_tokens for part in parts_of(trace, "free"))
    assert [info.rule for info in trace.requests] == ["regex '[A-Z]{2}-[0-9]{3}'", None]
    assert trace.vocab_size == 264
    assert "rule in state 3, allows 1 (forced), sampled" in to_text(trace.steps)
    assert from_data(to_data(trace)) == trace


def test_drafts_have_a_row_each() -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    config = EngineConfig(structured_outputs_config=NATIVE, speculative_config=spec)
    engine = LLMEngine(config=config)
    recorder = TraceRecorder(engine)
    rule = StructuredOutputsParams(regex="(ab){8}")
    params = SamplingParams(temperature=0, max_tokens=20, structured_outputs=rule)
    engine.add_request("bound", "abababab", params)
    run(engine)
    parts = parts_of(recorder.trace, "bound")
    assert {len(part.num_allowed_tokens) - len(part.draft_token_ids) for part in parts} == {1}
    assert any(part.draft_token_ids for part in parts)
    assert {n for part in parts for n in part.num_allowed_tokens[:-1]} == {1}


def test_one_that_waits_for_its_grammar_is_skipped_and_says_so() -> None:
    engine = LLMEngine(config=EngineConfig(structured_outputs_config=NATIVE))
    recorder = TraceRecorder(engine)
    core, ready = engine.engine_core, threading.Event()
    core.grammars = grammars = core.make_grammars()
    manager: Any = grammars.manager  # type: ignore[attr-defined]
    compile_rule = manager._compile
    manager._compile = lambda *args: (ready.wait(), compile_rule(*args))[1]
    engine.add_request("bound", "Part ", bound())
    engine.add_request("free", "Part ", SamplingParams(temperature=0, max_tokens=3))

    def let_go(record: StepRecord) -> None:
        if record.index == 2:
            structured = core.scheduler.requests["bound"].structured_output_request
            ready.set()
            wait([structured.future])

    core.step_observers.append(let_go)
    run(engine)
    steps = recorder.steps
    assert [step.skipped for step in steps[:3]] == [["bound"], ["bound"], []]
    assert [step.waiting for step in steps[:2]] == [["bound"], ["bound"]]
    assert steps[0].arrived == ["bound", "free"]
    assert steps[0].reason("bound") == "its rule is not compiled yet"
    assert "bound: skipped, its rule is not compiled yet" in to_text(steps[:1])
    assert steps[2].reason("bound") == steps[0].scheduled[0].why, "admitted as any other"
    assert from_data(to_data(recorder.trace)) == recorder.trace


def test_one_whose_adapter_has_no_slot_is_skipped_and_those_behind_it_may_pass(
    tmp_path: Path,
) -> None:
    engine = LLMEngine(config=EngineConfig(enable_lora=True, max_loras=1))
    recorder = TraceRecorder(engine)
    for number, name in enumerate(("A", "B", "C"), start=1):
        lora = None if name == "C" else ask(write_adapter(tmp_path / name, number), number)
        params = SamplingParams(temperature=0, max_tokens=2)
        engine.add_request(name, "The KV cache", params, lora_request=lora)
    run(engine)
    first = recorder.steps[0]
    assert [part.request_id for part in first.scheduled] == ["A", "C"]
    assert first.skipped == ["B"]
    assert first.reason("B") == "the step has no slot left for its adapter B"
    assert "against" not in to_text(recorder.steps)
    assert next(part.why for part in parts_of(recorder.trace, "B")) == first.scheduled[0].why


def test_a_recorder_leaves_the_core_as_it_was() -> None:
    engine = LLMEngine(config=EngineConfig(structured_outputs_config=NATIVE))
    core = engine.engine_core
    make = core.make_grammars
    recorder = TraceRecorder(engine)
    engine.add_request("free", "Part ", SamplingParams(temperature=0, max_tokens=2))
    run(engine)
    assert core.grammars is None, "no rule, no grammars"
    assert recorder.trace.vocab_size is None
    recorder.detach()
    assert core.make_grammars is make
    second = TraceRecorder(engine)
    engine.add_request("bound", "Part ", bound())
    run(engine)
    assert second.trace.vocab_size == 264
    second.detach()
    assert "get_grammar_bitmask" not in vars(core.grammars)


def test_a_count_beyond_the_vocabulary_is_refused() -> None:
    engine = LLMEngine(config=EngineConfig(structured_outputs_config=NATIVE))
    recorder = TraceRecorder(engine)
    engine.add_request("bound", "Part ", bound())
    run(engine)
    data = to_data(recorder.trace)
    data["steps"][-1]["scheduled"][0]["num_allowed_tokens"] = [265]
    with pytest.raises(
        TraceDataError, match="num_allowed_tokens must be 0 to vocab_size, which is 264"
    ):
        from_data(data)
