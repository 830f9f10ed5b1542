"""vLLM's lists of refused features, ours, and what the installed libraries do with each keyword."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.structured_output.backend_types import StructuredOutputOptions as Options
from mini_vllm.structured_output.features import (
    XGRAMMAR_ENFORCES,
    XGRAMMAR_FORMATS,
    ignored_by_xgrammar,
    unsupported_by_guidance,
    unsupported_by_xgrammar,
)
from mini_vllm.structured_output.manager import choose_backend
from mini_vllm.structured_output.request import get_structured_output_key
from mini_vllm.utils.structured_params import StructuredOutputsParams

pytestmark = pytest.mark.vllm

INT = {"type": "integer"}
INTS = {"type": "array", "items": INT}
AB = {"type": "object", "properties": {"a": INT, "b": INT}}
# Schema, a document that it allows, one that it does not.
SCHEMAS: list[tuple[dict[str, Any] | bool, str, str]] = [
    ({"type": "integer", "multipleOf": 7}, "35", "36"),
    ({"type": "integer", "minimum": 5}, "7", "3"),
    ({"type": "number", "exclusiveMaximum": 5}, "4.5", "5.5"),
    ({**INTS, "uniqueItems": True}, "[1,2]", "[1,1]"),
    ({**INTS, "contains": {"const": 5}}, "[5]", "[4]"),
    ({**INTS, "contains": {"const": 5}, "maxContains": 1}, "[5]", "[5,5]"),
    ({**INTS, "minItems": 2}, "[1,2]", "[1]"),
    ({"type": "array", "prefixItems": [INT], "items": False}, "[1]", "[1,2]"),
    (
        {"type": "object", "patternProperties": {"^a$": INT}, "additionalProperties": False},
        '{"a":1}', '{"b":1}',
    ),
    ({"type": "object", "propertyNames": {"pattern": "^a$"}}, '{"a":1}', '{"b":1}'),
    ({**AB, "dependentRequired": {"a": ["b"]}}, '{"a":1,"b":1}', '{"a":1}'),
    ({**AB, "dependentSchemas": {"a": {"required": ["b"]}}}, '{"a":1,"b":1}', '{"a":1}'),
    ({**AB, "additionalProperties": False}, '{"a":1}', '{"c":1}'),
    ({"type": "integer", "not": {"const": 5}}, "4", "5"),
    ({"type": "integer", "if": {"minimum": 5}, "then": {"const": 7}}, "7", "6"),
    ({"oneOf": [INT, {"type": "integer", "minimum": 5}]}, "3", "7"),
    ({"allOf": [INT, {"type": "integer", "minimum": 5}]}, "7", "3"),
    ({"anyOf": [{"type": "string"}, INT]}, "3", "null"),
    ({"type": "string", "maxLength": 1}, '"a"', '"ab"'),
    ({"type": "string", "pattern": "^a$"}, '"a"', '"b"'),
    ({"uniqueItems": True}, "[1,2]", "[1,1]"),
    ({"multipleOf": 7}, "35", "36"),
    ({"minLength": 2}, '"ab"', '"a"'),
    ({"type": ["integer", "null"], "multipleOf": 7}, "35", "36"),
    ({"const": {"a": 1}}, '{"a":1}', '{"a":2}'),
    ({"type": "string", "format": "date"}, '"2020-01-01"', '"x"'),
    ({"type": "string", "format": "iri"}, '"http://a.b/"', '" "'),
    ({"type": "string", "format": "idn-email"}, '"a@b.co"', '"x"'),
    ({"type": "string", "format": "json-pointer"}, '"/a"', '"a"'),
]  # fmt: skip
XGRAMMAR_IGNORED = [3, 4, 5, 10, 11, 13, 14, 15, 16, 20, 21, 22, 26, 27]
GUIDANCE_REFUSES = [3, 4, 5, 9, 10, 11, 13, 14, 15, 20, 26, 27, 28]
"""By their places in `SCHEMAS`. All others are enforced."""

VOCAB = ["<eos>", *(chr(code) for code in range(32, 127)), "\n"]


@pytest.fixture(scope="module")
def obeys() -> dict[str, Any]:
    import llguidance
    import xgrammar as xgr

    info = xgr.TokenizerInfo(VOCAB, vocab_size=len(VOCAB), stop_token_ids=[0])
    compiler = xgr.GrammarCompiler(info)
    wrapped = SimpleNamespace(
        eos_token_id=0, bos_token_id=None, tokens=[v.encode() for v in VOCAB], special_token_ids=[0]
    )
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(wrapped))

    def xgrammar(schema: object, document: str) -> bool:
        matcher = xgr.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
        return all(map(matcher.accept_token, [*map(VOCAB.index, document), 0]))

    def guidance(schema: object, document: str) -> bool:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        if error := matcher.get_error():
            raise ValueError(error)
        tokens = [*map(VOCAB.index, document), 0]
        return bool(matcher.validate_tokens(tokens) == len(tokens))

    return {"xgrammar": xgrammar, "guidance": guidance}


def verdict(obey: Any, schema: object, good: str, bad: str) -> str:
    try:
        return {(True, False): "enforced", (True, True): "ignored"}[
            obey(schema, good), obey(schema, bad)
        ]
    except ValueError as error:
        return f"refused: {error}"


def test_what_xgrammar_does_with_each_keyword(obeys: dict[str, Any]) -> None:
    said = [verdict(obeys["xgrammar"], *case) for case in SCHEMAS]
    assert [i for i, word in enumerate(said) if word != "enforced"] == XGRAMMAR_IGNORED
    assert {said[i] for i in XGRAMMAR_IGNORED} == {"ignored"}


def test_what_guidance_does_with_each_keyword(obeys: dict[str, Any]) -> None:
    said = [verdict(obeys["guidance"], *case) for case in SCHEMAS]
    assert [i for i, word in enumerate(said) if word != "enforced"] == GUIDANCE_REFUSES
    assert all(said[i].startswith("refused: ") for i in GUIDANCE_REFUSES)


def test_what_xgrammar_ignores_is_listed_and_nothing_else() -> None:
    listed = [i for i, (schema, _, _) in enumerate(SCHEMAS) if ignored_by_xgrammar(schema)]
    assert listed == XGRAMMAR_IGNORED


def test_some_refused_features_would_be_enforced(obeys: dict[str, Any]) -> None:
    refused = [(unsupported_by_xgrammar(schema), i) for i, (schema, _, _) in enumerate(SCHEMAS)]
    needless = {n for named, i in refused for n in named if i not in XGRAMMAR_IGNORED}
    assert needless == XGRAMMAR_ENFORCES


def test_our_lists_are_vllms() -> None:
    from vllm.v1.structured_output import backend_guidance, backend_xgrammar

    assert backend_xgrammar.STRING_SUPPORTED_FORMATS == XGRAMMAR_FORMATS
    nested = [
        {"properties": {"a": {"items": [case[0]]}}, "anyOf": [case[0], {}]} for case in SCHEMAS
    ]
    deep = [{"anyOf": [[case[0]]]} for case in SCHEMAS]  # lists in lists are looked into by neither
    for schema in [case[0] for case in SCHEMAS] + nested + deep:
        theirs = backend_xgrammar.has_xgrammar_unsupported_json_features(schema)
        assert bool(unsupported_by_xgrammar(schema)) == theirs, schema
        theirs = backend_guidance.has_guidance_unsupported_json_features(schema)
        assert bool(unsupported_by_guidance(schema)) == theirs, schema


RULES: list[dict[str, Any]] = [
    *({"json": case[0]} for case in SCHEMAS),
    {"json": {"type": "nonsense"}},
    {"json": "false"},
    {"json_object": True},
    *({"regex": r} for r in ["[0-9]+", "\\p{L}", "(?i)a", "a(?=b)", "\\bfoo", "[", "(a)\\1", "a{3,1}", ""]),
    {"choice": ["a", "b"]},
    *({"grammar": g} for g in [
        'root ::= "a"', 'root ::= x', "start: 'a' | b\nb: 'c'", 'start: %json {"type": "integer"}',
        "start: /[a-z]+/", "nonsense", 'start: "a',
    ]),
    *({"structural_tag": json.dumps(tag)} for tag in [
        {"structures": [{"begin": "<f>", "schema": INT, "end": "<"}], "triggers": ["<f"]},
        {"structures": [{"begin": "<f>", "schema": INT, "end": "<"}], "triggers": ["g"]},
        {"structures": [{"begin": "<f>"}], "triggers": ["<f"]},
        {"structures": []}, {}, {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}},
    ]),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["auto", "xgrammar", "guidance"])
def test_a_rule_is_checked_as_vllm_checks_it(backend: str) -> None:
    """The same rules pass, with the same backend under `auto`; upstream's outlines is a refusal here."""
    from vllm import SamplingParams
    from vllm.config.structured_outputs import StructuredOutputsConfig
    from vllm.sampling_params import StructuredOutputsParams as Theirs

    config = StructuredOutputsConfig(backend=backend)
    different = []
    for rule in RULES:
        params = SamplingParams(structured_outputs=Theirs(**rule))
        try:
            params._validate_structured_outputs(config, object())
            theirs = params.structured_outputs._backend
        except Exception:  # a schema that outlines cannot do is no ValueError
            theirs = "refused"
        try:
            ours, why = choose_backend(StructuredOutputsParams(**rule), backend), ""
        except ValueError as error:
            ours, why = "refused", str(error)
        if ours != theirs and (ours, theirs) != ("refused", "outlines"):
            different.append((rule, ours, theirs))
        if why and f"structured_outputs.{next(iter(rule))}" not in why:
            different.append((rule, "the error does not name it", why))
    assert different == []


def test_a_choice_with_a_line_break_stays_with_xgrammar() -> None:
    """Upstream its EBNF is invalid, so that `auto` goes on to guidance."""
    params = StructuredOutputsParams(choice=["a\nb", "c"])
    assert choose_backend(params) == "xgrammar"
    assert get_structured_output_key(params)[0] is Options.CHOICE
