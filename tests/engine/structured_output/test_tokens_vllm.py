"""Tokens beside real vLLM, with the same backend: rules and free requests in one batch, chunks, a small pool,
with and without drafts. vLLM steps synchronously on a CPU; ours plans ahead as well, to the same tokens.

Sampled, every request has a seed and a temperature, and no prompt comes in chunks: `course.parity.sampled`
says why. There are no drafts then, since vLLM's CPU build judges them without a temperature
(docs/FOUND_IN_VLLM.md, 13).
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from course.parity.sampled import make_knobs
from course.parity.tokens import TOLERANCE, compare, make_prompts, make_scenarios
from course.parity.tokens_run import Result, Scenario, run_engine
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.tokenizer import Tokenizer
from tests.engine.helpers.thorough import either

pytestmark = pytest.mark.vllm

TICKET: dict[str, Any] = {
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
VOCAB_SIZE = 264
EAGLE = {
    "method": "eagle",
    "model": str(DEFAULT_MODEL.parent / "tiny-llama-eagle"),
    "num_speculative_tokens": 3,
}


def scenarios(rules: list[Any], spec: dict[str, Any] | None = None) -> list[Scenario]:
    """Prompts whose rules follow each other: together, one by one, and in a pool that is too small."""
    encode = Tokenizer.from_folder(DEFAULT_MODEL).encode
    prompts = make_prompts(encode, VOCAB_SIZE, either(32, 200), seed=12)
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


def sampled_scenarios(rules: list[Any], seed: int) -> list[Scenario]:
    """The like of `scenarios`, with temperatures, seeds, and some of all that shapes a distribution."""
    encode = Tokenizer.from_folder(DEFAULT_MODEL).encode
    prompts = make_prompts(encode, VOCAB_SIZE, either(32, 200), seed, longest=128)
    knobs = make_knobs(len(prompts), seed)
    rng = random.Random(seed)
    for i, asked in enumerate(knobs):
        if rng.random() < 0.35:
            asked["logit_bias"] = {
                str(rng.randrange(VOCAB_SIZE)): rng.uniform(-8, 8) for _ in range(rng.randint(1, 8))
            }
        if (rule := rules[i % len(rules)]) is not None:
            asked["structured_outputs"] = rule
    return make_scenarios(prompts, either(8, 40), 40, 36, knobs=knobs)


def check_sampled(made: list[Scenario], ours: list[Result], theirs: list[Result]) -> None:
    """Tokens and their logprobs, and the likeliest at each position as far as they are allowed at all.

    One that only vLLM has is as likely as the last that we have: the k-th best by another rounding.
    """
    check(made, ours, theirs)
    for mini, real in zip(ours, theirs, strict=True):
        for our, their in zip(mini.completions, real.completions, strict=True):
            for mine, other in zip(our.top, their.top, strict=True):
                assert len(mine) == len(other)
                mine, other = (
                    {t: p for t, p in top.items() if p > -math.inf} for top in (mine, other)
                )
                assert len(mine) == len(other)
                last = min(mine.values())
                for token, logprob in other.items():
                    assert abs(mine.get(token, last) - logprob) <= TOLERANCE


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


@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logprobs"])
@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_sampled_tokens_are_those_of_vllm(backend: str, mode: str) -> None:
    made = sampled_scenarios(RULES, 42)
    theirs = run("vllm", made, backend, logprobs_mode=mode)
    check_sampled(made, run("mini_vllm", made, backend, logprobs_mode=mode), theirs)
    ahead = run("mini_vllm", made, backend, async_scheduling=True, two_in_flight=True)
    for mini, real in zip(ahead, theirs, strict=True):
        tokens = [[c.token_ids for c in result.completions] for result in (mini, real)]
        assert tokens[0] == tokens[1]


def test_the_backend_in_numpy_samples_the_tokens_of_vllms_xgrammar() -> None:
    """Without `maxLength`: beside it xgrammar allows raw control characters, where JSON has none, and so
    leaves less for all others (`test_native_schema_vllm.py`)."""
    properties = {**TICKET["properties"], "item": {"type": "string"}}
    rules = [rule for rule in RULES if rule is None or "grammar" not in rule]
    rules[rules.index({"json": TICKET})] = {"json": TICKET | {"properties": properties}}
    made = sampled_scenarios(rules, 43)
    theirs = run("vllm", made, "xgrammar")
    check_sampled(made, run("mini_vllm", made, "native"), theirs)
