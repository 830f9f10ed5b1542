"""Tokens beside real vLLM, with the same backend: rules and free requests in one batch, chunks, a small pool,
with and without drafts. vLLM steps synchronously on a CPU; ours plans ahead as well, to the same tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from course.parity.tokens import compare, make_prompts, make_scenarios
from course.parity.tokens_run import Result, Scenario, run_engine
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.thorough import either

pytestmark = pytest.mark.vllm

TICKET = {
    "type": "object",
    "properties": {
        "item": {"type": "string", "maxLength": 12},
        "urgent": {"type": "boolean"},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
    },
    "required": ["item", "urgent", "days"],
    "additionalProperties": False,
}
QUERY = 'root ::= "SELECT " name (", " name)* " FROM " name\nname ::= [a-z]{1,5}'
RULES: list[dict[str, Any] | None] = [
    None, {"regex": "[A-Z]{2}-[0-9]{3,4}"}, {"choice": ["repair", "return", "question"]}, None,
    {"json": TICKET}, {"grammar": QUERY}, {"json_object": True}, {"regex": r"(\w+ ){2,6}end"},
]  # fmt: skip
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
EAGLE = {
    "method": "eagle",
    "model": str(DEFAULT_MODEL.parent / "tiny-llama-eagle"),
    "num_speculative_tokens": 3,
}


def scenarios(rules: list[Any], spec: dict[str, Any] | None = None) -> list[Scenario]:
    """Prompts whose rules follow each other: together, one by one, and in a pool that is too small."""
    encode = Tokenizer.from_folder(DEFAULT_MODEL).encode
    prompts = make_prompts(encode, 264, either(32, 200), seed=12)
    made = make_scenarios(prompts, either(8, 40), 40, 64, spec)
    rule_of = {str(prompt): rules[i % len(rules)] for i, prompt in enumerate(prompts)}
    for scenario in made:
        asked = [rule_of[str(prompt)] for prompt in scenario.prompts]
        scenario.sampling = [
            {"temperature": 0} | ({"structured_outputs": rule} if rule is not None else {})
            for rule in asked
        ]
    return made


def run(engine: str, made: list[Scenario], backend: str, **settings: Any) -> list[Result]:
    settings["structured_outputs_config"] = {"backend": backend}
    return run_engine(
        engine, str(DEFAULT_MODEL), [replace(s, settings={**s.settings, **settings}) for s in made]
    )


def check(made: list[Scenario], ours: list[Result], theirs: list[Result]) -> None:
    for scenario, mini, real in zip(made, ours, theirs, strict=True):
        found = compare(scenario, mini, real)
        assert found.mismatches == []
        reasons = [completion.finish_reason for completion in mini.completions]
        assert "stop" in reasons
        assert "error" not in reasons
    assert theirs[2].preemptions > 0 or "speculative_config" in made[2].settings


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_tokens_are_those_of_vllm(backend: str) -> None:
    made = scenarios(RULES)
    theirs = run("vllm", made, backend)
    check(made, run("mini_vllm", made, backend), theirs)
    ahead = run("mini_vllm", made, backend, async_scheduling=True, two_in_flight=True)
    for mini, real in zip(ahead, theirs, strict=True):
        tokens = [[c.token_ids for c in result.completions] for result in (mini, real)]
        assert tokens[0] == tokens[1]


def test_the_backend_in_numpy_gives_the_tokens_of_vllms_xgrammar() -> None:
    made = scenarios([rule for rule in RULES if rule is None or "grammar" not in rule])
    check(made, run("mini_vllm", made, "native"), run("vllm", made, "xgrammar"))


@pytest.mark.parametrize("spec", [NGRAM, EAGLE], ids=["ngram", "eagle"])
def test_tokens_and_drafts_with_speculation(spec: dict[str, Any]) -> None:
    made = scenarios(RULES, spec)
    check(made, run("mini_vllm", made, "xgrammar"), run("vllm", made, "xgrammar"))
