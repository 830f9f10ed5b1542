"""`StructuredOutputsParams`: exactly one rule, and errors that name the field and the value."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm.structured_output.backend_types import StructuredOutputOptions as Options
from mini_vllm.structured_output.request import describe_rule, get_structured_output_key
from mini_vllm.utils.structured_params import StructuredOutputsParams

TAG = '{"structures": [], "triggers": []}'


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"json": {"b": 1, "a": [True]}}, (Options.JSON, '{"b": 1, "a": [true]}')),
        ({"json": '{"type":"integer"}'}, (Options.JSON, '{"type":"integer"}')),
        ({"json": {}}, (Options.JSON, "{}")),
        ({"json_object": True}, (Options.JSON_OBJECT, "")),
        ({"regex": "[0-9]{2}"}, (Options.REGEX, "[0-9]{2}")),
        ({"regex": ""}, (Options.REGEX, "")),
        ({"choice": ["é", ""]}, (Options.CHOICE, '["\\u00e9", ""]')),
        ({"grammar": 'root ::= "a"'}, (Options.GRAMMAR, 'root ::= "a"')),
        ({"structural_tag": TAG}, (Options.STRUCTURAL_TAG, TAG)),
    ],
)
def test_a_rule_has_a_kind_and_a_text(given: dict[str, Any], key: tuple[Options, str]) -> None:
    params = StructuredOutputsParams(**given)
    assert get_structured_output_key(params) == key
    assert not params.all_constraints_none()
    assert params.all_non_structural_tag_constraints_none() == ("structural_tag" in given)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ValueError, "exactly one of json, regex, .*got none"),
        ({"regex": "a", "choice": ["b"]}, ValueError, "got regex='a', choice=\\['b'\\]"),
        ({"json": ""}, ValueError, "structured_outputs.json must be a JSON schema, got ''"),
        ({"json": "{"}, ValueError, "structured_outputs.json must be a JSON schema, got '{'"),
        ({"json": "[1]"}, ValueError, "an object, true or false, got '\\[1\\]'"),
        (
            {"json": {"const": {1}}},
            ValueError,
            "structured_outputs.json .*got {'const': \\{1\\}}: Object of type set",
        ),
        ({"json": {"const": float("nan")}}, ValueError, "structured_outputs.json .*nan"),
        ({"json": 3}, TypeError, "structured_outputs.json must be .*got 3 of type int"),
        ({"json_object": False}, ValueError, "structured_outputs.json_object .*got False"),
        (
            {"json_object": 1},
            TypeError,
            "structured_outputs.json_object must be True or False, got 1",
        ),
        ({"regex": 3}, TypeError, "structured_outputs.regex must be a string, got 3"),
        ({"regex": "\ud800"}, ValueError, "structured_outputs.regex .*lone surrogate"),
        ({"choice": []}, ValueError, "structured_outputs.choice cannot be an empty list"),
        (
            {"choice": "ab"},
            TypeError,
            "structured_outputs.choice must be a list of strings, got 'ab'",
        ),
        ({"choice": ["a", 1]}, TypeError, "structured_outputs.choice must be a list of strings"),
        ({"choice": ["\udfff"]}, ValueError, "structured_outputs.choice .*lone surrogate"),
        ({"grammar": " \n"}, ValueError, "structured_outputs.grammar cannot be an empty string"),
        (
            {"structural_tag": ""},
            ValueError,
            "structured_outputs.structural_tag cannot be an empty",
        ),
        ({"structural_tag": "[]"}, ValueError, "structured_outputs.structural_tag .*object, got"),
        (
            {"structural_tag": "x"},
            ValueError,
            "structured_outputs.structural_tag must be JSON, got 'x'",
        ),
        (
            {"regex": "a", "disable_any_whitespace": True},
            ValueError,
            "structured_outputs.disable_any_whitespace=True: no backend reads it from a request",
        ),
        ({"regex": "a", "whitespace_pattern": " "}, ValueError, "whitespace_pattern=' '"),
    ],
)
def test_what_is_no_rule_is_refused_by_name(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        StructuredOutputsParams(**given)


def test_a_long_value_is_shown_short() -> None:
    with pytest.raises(ValueError) as caught:
        StructuredOutputsParams(json="[" * 100_000)
    assert len(str(caught.value)) < 500
    assert len(describe_rule((Options.REGEX, "a" * 100_000))) < 200
