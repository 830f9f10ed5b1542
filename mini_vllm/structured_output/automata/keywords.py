"""The keywords of JSON Schema, draft 2020-12: which are obeyed, which say nothing, which are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from mini_vllm.structured_output.automata.limits import UnsupportedRule
from mini_vllm.structured_output.automata.numbers import MOST_DIGITS
from mini_vllm.structured_output.automata.strings import FORMATS
from mini_vllm.utils.untrusted import shorten_repr

Flat = dict[str, Any]
"""A schema as keywords with checked values."""

TYPES = ("object", "array", "string", "number", "boolean", "null")
"""All types; `integer` is a part of `number`."""

ANNOTATIONS = frozenset(
    {
        "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment",
        "contentEncoding", "contentMediaType", "contentSchema", "$defs", "definitions", "$anchor",
        "$dynamicAnchor", "discriminator",
    }
)  # fmt: skip
"""Say nothing about which document is valid. `discriminator` is a hint of OpenAPI's beside `oneOf`."""

REFUSED = {
    **dict.fromkeys(
        [
            "not", "if", "then", "else", "contains", "minContains", "maxContains", "multipleOf",
            "dependentRequired", "dependentSchemas", "dependencies",
            "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
            "$recursiveAnchor", "$vocabulary",
        ],
        "this keyword is not supported",
    ),
    "additionalItems": "of older drafts: here it is items",
    "nullable": 'of OpenAPI: here it is {"type": [..., "null"]}',
    "id": "of older drafts: here it is $id",
}  # fmt: skip


def refuse(path: str, what: str) -> UnsupportedRule:
    """The error for a place in a schema."""
    return UnsupportedRule(f"{path}: {what}" if path else what)


def join_path(path: str, step: object) -> str:
    """The path of what is inside."""
    return f"{path}.{step}" if path else str(step)


def is_schema(value: object) -> bool:
    """Whether it has the form of a schema."""
    return isinstance(value, dict | bool)


def check_keywords(schema: Mapping[str, Any], path: str) -> Flat:
    """The keywords of one schema that say something, each with a value of the right form.

    Raises:
        UnsupportedRule: a keyword is unknown or not supported, or its value has the wrong form.
    """
    flat: Flat = {}
    for key, value in schema.items():
        place = join_path(path, key)
        if key in REFUSED:
            raise refuse(place, REFUSED[key])
        if key in _CHECKS:
            flat[key] = _CHECKS[key](value, place)
        elif key == "uniqueItems":
            if value is not False:
                raise refuse(place, "this keyword is not supported")
        elif key in ("$id", "$schema"):
            _check_identifier(key, value, path)
        elif key not in ANNOTATIONS and not key.startswith("x-"):
            raise refuse(place, "unknown keyword")
    for least, most in (
        ("minItems", "maxItems"),
        ("minLength", "maxLength"),
        ("minProperties", "maxProperties"),
    ):
        if flat.get(least, 0) > flat.get(most, flat.get(least, 0)):
            raise refuse(join_path(path, least), f"more than {most}: nothing fits")
    if "const" in flat:
        values = flat.setdefault("enum", [flat["const"]])
        flat["enum"] = [v for v in values if same_value(v, flat["const"])]
        del flat["const"]
    return flat


def _check_identifier(key: str, value: object, path: str) -> None:
    place = join_path(path, key)
    if not isinstance(value, str):
        raise refuse(place, "a text is expected")
    if key == "$id" and path:
        raise refuse(place, "only the whole schema can have one")
    if key == "$schema" and "json-schema.org/" not in value:
        raise refuse(place, f"the dialect {shorten_repr(value)} is not known")


def same_value(left: object, right: object) -> bool:
    """Whether two JSON values are equal: true is not 1, 1.0 is."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_value, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_value(left[k], right[k]) for k in left)
    return left == right


def types_of(value: object) -> frozenset[str]:
    """The types that a value is of: a whole number is of two."""
    match value:
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case Decimal():
            whole = value == value.to_integral_value()
            return frozenset({"integer", "number"} if whole else {"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
        case dict():
            return frozenset({"object"})
        case _:
            return frozenset({"null"})


def _count(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refuse(place, f"a whole number from 0 on is expected, got {shorten_repr(value)}")
    return value


def _bound(value: object, place: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise refuse(place, f"a number is expected, got {shorten_repr(value)}")
    bound = Decimal(value)
    exponent = bound.as_tuple().exponent
    if bound.adjusted() >= MOST_DIGITS or not isinstance(exponent, int) or -exponent > MOST_DIGITS:
        raise refuse(place, f"a bound of more than {MOST_DIGITS} digits")
    return bound


def _texts(value: object, place: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise refuse(place, f"a list of texts is expected, got {shorten_repr(value)}")
    return list(dict.fromkeys(value))


def _types(value: object, place: str) -> frozenset[str]:
    names = _texts([value] if isinstance(value, str) else value, place)
    for name in names:
        if name not in (*TYPES, "integer"):
            raise refuse(place, f"{shorten_repr(name)} is no type")
    if not names:
        raise refuse(place, "an empty list: nothing fits")
    return frozenset(names) - ({"integer"} if "number" in names else set())


def _values(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise refuse(place, f"a list is expected, got {shorten_repr(value)}")
    if not value:
        raise refuse(place, "an empty list: nothing fits")
    return value


def _schema(value: object, place: str) -> Any:
    if not is_schema(value):
        raise refuse(
            place, f"a schema, an object or a truth value, is expected, got {shorten_repr(value)}"
        )
    return value


def _items(value: object, place: str) -> Any:
    if isinstance(value, list):
        raise refuse(place, "a list is of older drafts: here it is prefixItems")
    return _schema(value, place)


def _schemas(value: object, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise refuse(place, f"a list of schemas is expected, got {shorten_repr(value)}")
    return [_schema(entry, join_path(place, number)) for number, entry in enumerate(value)]


def _named_schemas(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse(place, f"an object is expected, got {shorten_repr(value)}")
    return {name: _schema(entry, join_path(place, name)) for name, entry in value.items()}


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise refuse(place, f"a text is expected, got {shorten_repr(value)}")
    return value


def _format(value: object, place: str) -> str:
    if not isinstance(value, str) or value not in FORMATS:
        known = ", ".join(FORMATS)
        raise refuse(place, f"{shorten_repr(value)} is not supported: there are {known}")
    return value


def _anything(value: object, place: str) -> Any:
    return value


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "$ref": _text,
    "type": _types,
    "enum": _values,
    "const": _anything,
    "allOf": _schemas,
    "anyOf": _schemas,
    "oneOf": _schemas,
    "properties": _named_schemas,
    "required": _texts,
    "additionalProperties": _schema,
    "patternProperties": _named_schemas,
    "propertyNames": _schema,
    "minProperties": _count,
    "maxProperties": _count,
    "items": _items,
    "prefixItems": _schemas,
    "minItems": _count,
    "maxItems": _count,
    "minLength": _count,
    "maxLength": _count,
    "pattern": _text,
    "format": _format,
    "minimum": _bound,
    "maximum": _bound,
    "exclusiveMinimum": _bound,
    "exclusiveMaximum": _bound,
}
