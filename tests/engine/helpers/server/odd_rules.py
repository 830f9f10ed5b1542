"""Odd rules, drawn from a seed, as fields of a request."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

TICKET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "item": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["repair", "return", "question"]},
        "urgent": {"type": "boolean"},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
    },
    "required": ["item", "kind", "urgent", "days"],
    "additionalProperties": False,
}
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**70, 1e300, 0.5, "", "x", "\x00", "\u2603", "\U0001f600", "a" * 400, [],
    {}, [[]], [{}], {"": {}}, [None], ["a", "a"], {"$ref": "#"}, {"type": []}, {"type": "string"},
)  # fmt: skip
_KEYS = (
    "type", "properties", "required", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf",
    "not", "if", "then", "$ref", "$defs", "pattern", "format", "minLength", "maxLength", "minimum", "maximum",
    "exclusiveMinimum", "multipleOf", "minItems", "maxItems", "uniqueItems", "contains", "minProperties",
    "maxProperties", "patternProperties", "propertyNames", "additionalProperties", "dependentRequired",
    "unevaluatedProperties", "$id", "$anchor", "default", "nullable", "",
)  # fmt: skip
_KINDS = (
    "string",
    "integer",
    "number",
    "object",
    "array",
    "boolean",
    "null",
    "frog",
    ["string", "null"],
)
_PIECES = (
    "a", "b", ".", "\\d", "\\w", "\\s", "[a-c]", "[^a]", "[", "]", "(", ")", "(?:", "(?=", "(?<n>", "|", "*",
    "+", "?", "{2}", "{1,3}", "{3,1}", "{1000}", "{,2}", "^", "$", "\\b", "\\1", "\\p{L}", "\\x00", "\\",
    "\n", "\u00e9", "(a|b)*", "[\\x00-\\x1f]", "\\A",
)  # fmt: skip
_LINES = (
    'root ::= "a" root | "b"', "root ::= ", 'root ::= "a"', "root ::= root", "root ::= x", 'start: "a" | "b"',
    "start: start", "start: /a+/", 'root ::= ("a" | "b"){1,3}', "root ::= [a-c]+", "%json {}", "::=", "\x00",
    "x", 'root ::= "', "# nothing", 'start: %json {"type": "frog"}',
)  # fmt: skip


def odd_rules(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Fields of `count` requests: most are refused."""
    rng = random.Random(seed)
    makers = (
        _mutated,
        _mutated,
        _drawn,
        _drawn,
        _regex,
        _regex,
        _choice,
        _grammar,
        _tag,
        _shapeless,
    )
    for _ in range(count):
        yield rng.choice(makers)(rng)


def _in_a_field(rng: random.Random, schema: Any) -> dict[str, Any]:
    form = rng.randrange(4)
    if form == 0:
        return {"structured_outputs": {"json": schema}}
    if form == 1:
        return {"structured_outputs": {"json": json.dumps(schema)[: rng.choice((10**6, 30))]}}
    named = {"name": "x", "schema": schema, "strict": rng.choice((True, False, None))}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _mutated(rng: random.Random) -> dict[str, Any]:
    """The ticket's schema with a few values put in other places."""
    schema: Any = copy.deepcopy(TICKET)
    for _ in range(rng.randrange(1, 4)):
        places = list(_places(schema))
        if not places:
            break
        where, key = rng.choice(places)
        what = rng.randrange(4)
        if what == 0:
            del where[key]
        elif what == 1 and isinstance(where, dict):
            where[rng.choice(_KEYS)] = copy.deepcopy(rng.choice(_VALUES))
        else:
            where[key] = copy.deepcopy(rng.choice((*_VALUES, *_KINDS)))
    return _in_a_field(rng, schema)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _drawn(rng: random.Random) -> dict[str, Any]:
    return _in_a_field(rng, _schema(rng, 4))


def _schema(rng: random.Random, depth: int) -> Any:
    if not depth or rng.random() < 0.2:
        return copy.deepcopy(rng.choice(_VALUES))
    schema: dict[str, Any] = {"type": rng.choice(_KINDS)} if rng.random() < 0.7 else {}
    for key in rng.sample(_KEYS, rng.randrange(4)):
        if key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            schema[key] = [_schema(rng, depth - 1) for _ in range(rng.randrange(3))]
        elif key in ("properties", "$defs", "patternProperties", "dependentRequired"):
            schema[key] = {
                rng.choice(("a", "b", "(", "")): _schema(rng, depth - 1) for _ in range(2)
            }
        elif key == "pattern":
            schema[key] = _pattern(rng)
        elif key == "$ref":
            schema[key] = rng.choice(("#", "#/$defs/a", "#/properties/a", "http://x/y", "", "#/%"))
        else:
            schema[key] = _schema(rng, depth - 1)
    return schema


def _pattern(rng: random.Random) -> str:
    return "".join(rng.choice(_PIECES) for _ in range(rng.randrange(8)))


def _regex(rng: random.Random) -> dict[str, Any]:
    value: Any = _pattern(rng) if rng.random() < 0.9 else rng.choice(_VALUES)
    return {"structured_outputs": {"regex": value}}


def _choice(rng: random.Random) -> dict[str, Any]:
    texts = ["a", "", "a\nb", '"', "\\", "\u00e9", "\x00", "a" * 300]
    value: Any = [rng.choice(texts) for _ in range(rng.randrange(4))]
    return {"structured_outputs": {"choice": value if rng.random() < 0.8 else rng.choice(_VALUES)}}


def _grammar(rng: random.Random) -> dict[str, Any]:
    lines = [rng.choice(_LINES) for _ in range(rng.randrange(1, 4))]
    return {"structured_outputs": {"grammar": rng.choice(("\n", " ", "")).join(lines)}}


def _tag(rng: random.Random) -> dict[str, Any]:
    begin = rng.choice(("<t>", "", "x"))
    parts = [{"begin": begin, "schema": _schema(rng, 2), "end": rng.choice(("</t>", ""))}]
    tag: dict[str, Any] = {
        "type": "structural_tag", "structures": parts, "triggers": rng.choice((["<t>"], [""], [], "x")),
    }  # fmt: skip
    if rng.random() < 0.5:
        content = {
            "type": rng.choice(("json_schema", "regex", "any_text", "x")),
            "json_schema": TICKET,
        }
        tag = {"type": "structural_tag", "format": rng.choice((content, *_VALUES))}
    if rng.random() < 0.5:
        return {"response_format": tag}
    return {"structured_outputs": {"structural_tag": rng.choice((json.dumps(tag), "x", "{}", tag))}}


def _shapeless(rng: random.Random) -> dict[str, Any]:
    value: Any = rng.choice(
        (*_VALUES, {"type": rng.choice(_VALUES)}, {"json_object": rng.choice(_VALUES)})
    )
    if rng.random() < 0.3:
        value = {rng.choice(("json", "regex", "choice", "grammar")): one for one in _VALUES[4:9]}
    return {rng.choice(("structured_outputs", "response_format")): value}
