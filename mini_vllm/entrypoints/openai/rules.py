"""A request's rule: what its `response_format` or `structured_outputs` wants the output to be.

Mirrors `vllm/entrypoints/openai/engine/protocol.py:150 ResponseFormat` and its neighbours, and the part of
the two `to_sampling_params` that makes a rule of them
(`vllm/entrypoints/openai/chat_completion/protocol.py:546 ChatCompletionRequest.to_sampling_params`). As
there, a schema is obeyed whatever `strict` says, and keys of `response_format` that are not known are passed
over, among them the `schema` that some clients put beside `json_object`.

Stricter than upstream, on purpose: two rules in one request are refused, where upstream lets a schema in
`response_format` replace the one in `structured_outputs`; so is a key of `structured_outputs` that is not
known, which may be a rule misspelt; and a rule beside `use_beam_search`, which upstream's search passes over.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Protocol

from mini_vllm.entrypoints.openai.body import CHECK_SECONDS
from mini_vllm.entrypoints.openai.errors import ApiError, bad_request, name_fields
from mini_vllm.utils.structured_params import StructuredOutputsParams
from mini_vllm.utils.untrusted import shorten_repr

MOST_RULE_CHARS = 64 * 1024
"""Longest rule, as text: the libraries' time grows with its square, or faster."""
MOST_RULE_DEPTH = 64
"""Most lists and objects in each other. llguidance has 128 at most; xgrammar's time grows with the depth."""

_TEXT, _OBJECT, _FLAG = {"type": "string"}, {"type": "object"}, {"type": "boolean"}
FORMAT_SCHEMA: dict[str, Any] = {
    "title": "Response Format",
    "anyOf": [
        {"type": "null"},
        {
            "type": "object",
            "properties": {"type": {"enum": ["text", "json_object"]}},
            "required": ["type"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "properties": {
                        "name": _TEXT, "description": _TEXT, "schema": _OBJECT, "strict": _FLAG,
                    },
                    "required": ["name", "schema"],
                },
            },
            "required": ["type", "json_schema"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "structural_tag"}, "format": _OBJECT},
            "required": ["type", "format"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "structural_tag"},
                "structures": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"begin": _TEXT, "schema": _OBJECT, "end": _TEXT},
                        "required": ["begin", "end"],
                    },
                },
                "triggers": {"type": "array", "items": _TEXT},
            },
            "required": ["type", "structures", "triggers"],
        },
    ],
}  # fmt: skip
RULE_SCHEMA: dict[str, Any] = {
    "title": "Structured Outputs",
    "anyOf": [
        {"type": "null"},
        *(
            {"type": "object", "properties": {name: one}, "required": [name], "additionalProperties": False}
            for name, one in {
                "json": {"anyOf": [_TEXT, _OBJECT]},
                "regex": _TEXT,
                "choice": {"type": "array", "minItems": 1, "items": _TEXT},
                "grammar": _TEXT,
                "json_object": {"const": True},
                "structural_tag": _TEXT,
            }.items()
        ),
    ],
}  # fmt: skip

_KEYS = tuple(field.name for field in fields(StructuredOutputsParams) if field.init)
_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
_OF_FORMAT = {
    "structured_outputs": "response_format",
    "structured_outputs.json": "response_format.json_schema.schema",
    "structured_outputs.json_object": "response_format",
    "structured_outputs.structural_tag": "response_format",
}


class RuleFields(Protocol):
    """What is asked of `SamplingFields`."""

    response_format: Any
    structured_outputs: Any
    use_beam_search: bool

    def field_of(self, parameter: str) -> str: ...


def rule_of(body: RuleFields) -> StructuredOutputsParams | None:
    """The rule of a request, None where it has none.

    Raises ApiError 400 that names the field and the rule.
    """
    given, asked = _given(body.structured_outputs), _asked(body.response_format)
    if given is not None and asked:
        raise bad_request(
            "response_format and structured_outputs both give a rule, and an output obeys one: "
            f"{shorten_repr(body.response_format)} and {shorten_repr(body.structured_outputs)}",
            "response_format",
        )
    if given is None and not asked:
        return None
    if body.use_beam_search:
        field = body.field_of("structured_outputs")
        raise bad_request(
            f"{field} cannot be had with use_beam_search: a search keeps no rule", field
        )
    arguments = asked if given is None else given
    _check_size(arguments, body)
    if isinstance(tag := arguments.get("structural_tag"), dict):
        arguments["structural_tag"] = json.dumps(tag)
    try:
        return StructuredOutputsParams(**arguments)
    except (TypeError, ValueError) as error:
        raise name_fields(error, body.field_of) from error


def check_too_long(body: object) -> ApiError | None:
    """The answer to a body whose rule is still looked at when its time is over; None: it has no rule."""
    for name in ("structured_outputs", "response_format", "tools"):
        value = getattr(body, name, None)
        if name == "tools" and getattr(body, "tool_choice", None) in (None, "none", "auto"):
            continue
        if value is not None and value != {"type": "text"}:
            return bad_request(
                f"{name} {shorten_repr(value)}: not checked in time. A rule has {CHECK_SECONDS} seconds, and "
                "none is begun while two that took longer still run",
                name,
            )
    return None


def rule_field(parameter: str, response_format: Any) -> str:
    """The field of a request that set `structured_outputs`, or a field of that."""
    asks = isinstance(response_format, dict) and response_format.get("type") != "text"
    return _OF_FORMAT.get(parameter, parameter) if asks else parameter


def _given(value: Any) -> dict[str, Any] | None:
    """`structured_outputs`, as arguments."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise bad_request(
            f"structured_outputs must be an object, got {shorten_repr(value)}", "structured_outputs"
        )
    for name in value:
        if name not in _KEYS:
            raise bad_request(
                f"structured_outputs has no key {shorten_repr(name)}; it has {', '.join(_KEYS)}",
                "structured_outputs",
            )
    # None is what a client sends for a field that it leaves out.
    return {name: one for name, one in value.items() if one is not None}


def _asked(value: Any) -> dict[str, Any]:
    """`response_format`, as arguments of a rule; empty for `text` or none."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _bad_format("must be an object", value)
    kind = value.get("type")
    if kind not in _FORMATS:
        raise _bad_format(f"type must be one of {', '.join(_FORMATS)}", kind)
    if kind == "structural_tag":
        return {"structural_tag": _tag(value)}
    schema = _json_schema(value.get("json_schema"), needed=kind == "json_schema")
    if kind == "json_schema":
        return {"json": schema}
    return {"json_object": True} if kind == "json_object" else {}


def _json_schema(value: Any, needed: bool) -> dict[str, Any] | None:
    """The schema in a format's `json_schema`, whose other keys change nothing."""
    if value is None and not needed:
        return None
    if not isinstance(value, dict):
        raise _bad_format("json_schema must be an object with name and schema", value)
    if not isinstance(value.get("name"), str):
        raise _bad_format("json_schema.name must be a string", value.get("name"))
    for name, kind, what in (("description", str, "a string"), ("strict", bool, "true or false")):
        if not isinstance(value.get(name), kind | None):
            raise _bad_format(f"json_schema.{name} must be {what}", value[name])
    schema = value.get("schema")
    if not isinstance(schema, dict | None) or (needed and schema is None):
        raise _bad_format("json_schema.schema must be an object, a JSON schema", schema)
    return schema


def _tag(value: dict[str, Any]) -> dict[str, Any]:
    """A structural tag in either form: with `format`, or with `structures` and `triggers`."""
    if "format" in value:
        return value
    parts, triggers = value.get("structures"), value.get("triggers")
    if not isinstance(parts, list):
        raise _bad_format(
            "structural_tag needs format, or structures and triggers; structures", parts
        )
    for place, part in enumerate(parts):
        if not isinstance(part, dict):
            raise _bad_format(f"structures[{place}] must be an object", part)
        for name in ("begin", "end"):
            if not isinstance(part.get(name), str):
                raise _bad_format(f"structures[{place}].{name} must be a string", part.get(name))
        if not isinstance(part.get("schema"), dict | None):
            raise _bad_format(f"structures[{place}].schema must be an object", part["schema"])
    if not isinstance(triggers, list) or not all(isinstance(one, str) for one in triggers):
        raise _bad_format("triggers must be a list of strings", triggers)
    return value


def _bad_format(rule: str, value: Any) -> ApiError:
    return bad_request(f"response_format: {rule}, got {shorten_repr(value)}", "response_format")


def _check_size(arguments: dict[str, Any], body: RuleFields) -> None:
    """Refuse a rule that would keep a library busy for long: once it is at work it cannot be stopped."""
    for name, value in arguments.items():
        field = body.field_of(f"structured_outputs.{name}")
        told, param = f"{field} {shorten_repr(value)}", field.partition(".")[0]
        data = value
        if isinstance(value, str) and name in ("json", "structural_tag"):
            try:
                data = json.loads(value)
            except (ValueError, RecursionError):
                data = None  # is refused for what it is
        if _depth(data) > MOST_RULE_DEPTH:
            raise bad_request(
                f"{told} has more than {MOST_RULE_DEPTH} lists and objects in each other", param
            )
        length = len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        if length > MOST_RULE_CHARS:
            raise bad_request(
                f"{told} has {length} characters, more than the {MOST_RULE_CHARS} that a rule may have",
                param,
            )


def _depth(data: Any) -> int:
    """How many lists and objects of JSON data lie in each other."""
    depth, level = 0, [data]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return depth
