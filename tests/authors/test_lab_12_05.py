"""Lab 12-05's recording beside the engine: its own step asks of grammars what vLLM's asks of xgrammar's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from course.learner.labs import load_module
from mini_vllm import LLM, SamplingParams, StructuredOutputsParams
from mini_vllm.structured_output.backend_native import NativeGrammar
from mini_vllm.structured_output.manager import StructuredOutputManager

LAB = (
    Path(__file__).resolve().parents[2]
    / "phase-12-structured-outputs/labs/lab-05-grammar-under-speculation"
)
support = load_module(LAB / "support.py", "lab_12_05_support_authors")


def count_grammars(monkeypatch: pytest.MonkeyPatch, counter: Any) -> None:
    """From now on every `NativeGrammar` counts, as in_vllm.py makes xgrammar's count."""
    names = ("_accept", "rollback", "validate_tokens", "accept_tokens", "fill_bitmask")
    take, back, validate, accept, fill = (getattr(NativeGrammar, name) for name in names)
    grammar_bitmask = StructuredOutputManager.grammar_bitmask

    def taken(self: NativeGrammar, token: int) -> bool:
        accepted: bool = take(self, token)
        counter.counts.accepted[counter.phase] += accepted
        return accepted

    def rolled_back(self: NativeGrammar, num_tokens: int) -> None:
        back(self, num_tokens)
        counter.counts.rolled_back[counter.phase] += num_tokens

    def validated(self: NativeGrammar, tokens: list[int]) -> Any:
        return counter.during("filter", validate, self, tokens)

    def accepted(self: NativeGrammar, request_id: str, tokens: list[int]) -> Any:
        if counter.phase == "fill":
            return accept(self, request_id, tokens)
        return counter.during("accept", accept, self, request_id, tokens)

    def filled(self: NativeGrammar, bitmask: Any, row: int) -> None:
        fill(self, bitmask, row)
        counter.counts.fills += 1

    def step_filled(self: StructuredOutputManager, requests: Any, ids: Any, drafts: Any) -> Any:
        rows = counter.during("fill", grammar_bitmask, self, requests, ids, drafts)
        counter.counts.calls["fill"] += len(ids) - 1
        return rows

    news = (taken, rolled_back, validated, accepted, filled)
    for name, new in zip(names, news, strict=True):
        monkeypatch.setattr(NativeGrammar, name, new)
    monkeypatch.setattr(StructuredOutputManager, "grammar_bitmask", step_filled)


def params_of(line: dict[str, Any], max_tokens: int) -> SamplingParams:
    rule = None
    if line["rule"] is not None:
        kind, text = line["rule"]
        read: dict[str, Any] = {"JSON_OBJECT": lambda _: True, "CHOICE": json.loads, "REGEX": str}
        rule = StructuredOutputsParams(**{kind.lower(): read[kind](text)})
    return SamplingParams(temperature=0, max_tokens=max_tokens, structured_outputs=rule)


@pytest.mark.parametrize("number", [0, 1])
def test_the_engine_asks_of_grammars_what_vllm_asks(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Real vLLM's tokens and counts, by the engine with the same model. Only
    an empty list of drafts is not validated here."""
    run = support.recorded()["runs"][number]
    counter = support.parts.Counter()
    count_grammars(monkeypatch, counter)
    llm = LLM(
        max_model_len=512, max_num_seqs=8, structured_outputs_config={"backend": "native"},
        speculative_config={
            "method": "ngram", "num_speculative_tokens": run["k"], "prompt_lookup_min": run["min_n"],
            "prompt_lookup_max": run["max_n"],
        },
    )  # fmt: skip
    outputs = llm.generate(
        [line["prompt"] for line in run["requests"]],
        [params_of(line, run["max_tokens"]) for line in run["requests"]],
        use_tqdm=False,
    )
    answers = [line["answer"] for line in run["requests"]]
    assert [list(output.outputs[0].token_ids) for output in outputs] == answers
    calls = "filter: calls"
    mine, theirs = counter.counts.flat(), dict(run["counts"])
    assert 0 < mine.pop(calls) < theirs.pop(calls)
    assert mine == theirs
