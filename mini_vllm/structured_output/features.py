"""What of JSON Schema a library enforces, refuses, or passes over in silence.

The two lists of refused features are vLLM's, since under `auto` they choose the backend. They were compared
with xgrammar 0.2.8 and llguidance 1.7.6 (`tests/engine/structured_output/test_features_vllm.py`): a list may
refuse what its library would enforce, and misses what its library ignores. What the three backends make of
the official test suite is in a table (`tests/engine/structured_output/json_suite.py`). The native one ignores
nothing: what it cannot enforce it refuses (`automata/keywords.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mini_vllm.utils.untrusted import shorten_repr

XGRAMMAR_FORMATS = frozenset(
    {
        "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri",
        "uri-reference", "uri-template", "json-pointer", "relative-json-pointer",
    }
)  # fmt: skip
"""(`vllm/v1/structured_output/backend_xgrammar.py:203 STRING_SUPPORTED_FORMATS`)"""

_REFUSED = {
    "integer": ("multipleOf",),
    "number": ("multipleOf",),
    "array": ("uniqueItems", "contains", "minContains", "maxContains"),
    "object": ("patternProperties", "propertyNames"),
}
XGRAMMAR_ENFORCES = frozenset({"multipleOf", "patternProperties", "propertyNames"})
"""On the list of refused features, though the library obeys them."""
XGRAMMAR_IGNORES = frozenset(
    {
        "uniqueItems", "contains", "maxContains", "dependentRequired", "dependentSchemas", "dependencies",
        "not", "if", "then", "else", "$dynamicRef",
    }
)  # fmt: skip
"""Passed over by the library; of these the list refuses the first three, where `type` is `array`."""
_NEED_TYPE = frozenset(
    {
        "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength",
        "maxLength", "pattern", "format",
    }
)  # fmt: skip
_NEED_TYPE_OR_PARTS = frozenset(
    {
        "required", "minProperties", "maxProperties", "patternProperties", "propertyNames", "minItems",
        "maxItems",
    }
)  # fmt: skip
"""These say without `type` nothing to the library, unless one of the next stands beside them."""
_PARTS = frozenset(
    {
        "properties", "additionalProperties", "unevaluatedProperties", "items", "prefixItems",
        "unevaluatedItems",
    }
)  # fmt: skip
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""The library reads the first of these that is there, and nothing beside it."""


def _objects(schema: object) -> Iterator[dict[str, Any]]:
    """Every object in a schema, itself first. Like upstream's walk it looks into lists one deep, and takes
    a property's name for a keyword where its value is an object."""
    pending = [schema]
    while pending:
        found = pending.pop()
        if not isinstance(found, dict):
            continue
        yield found
        for value in found.values():
            pending += value if isinstance(value, list) else [value]


def _has_unknown_format(part: dict[str, Any]) -> bool:
    known = part.get("format")
    return "format" in part and not (isinstance(known, str) and known in XGRAMMAR_FORMATS)


def unsupported_by_xgrammar(schema: object) -> list[str]:
    """Names of the features for which vLLM does not send a schema to xgrammar
    (`vllm/v1/structured_output/backend_xgrammar.py:221 has_xgrammar_unsupported_json_features`)."""
    named: set[str] = set()
    for part in _objects(schema):
        kind = part.get("type")
        if not isinstance(kind, str):
            continue
        named.update(key for key in _REFUSED.get(kind, ()) if key in part)
        if kind == "string" and _has_unknown_format(part):
            named.add(f"format {shorten_repr(part['format'])}")
    return sorted(named)


def ignored_by_xgrammar(schema: object) -> list[str]:
    """Keywords of a schema that xgrammar takes and does not obey: the document may break them.

    Of the official test suite this names something in every schema with which xgrammar takes an invalid
    document, but for one pattern, `^\\S$`.
    """
    named: set[str] = set()
    names_of_properties: list[object] = []  # these are strings, said or not
    for part in _objects(schema):
        names_of_properties.append(part.get("propertyNames"))
        named.update(XGRAMMAR_IGNORES & part.keys())
        if isinstance(both := part.get("allOf"), list) and len(both) > 1:
            named.add("allOf")
        if "oneOf" in part:
            named.add("oneOf")
        if "type" not in part and not any(part is names for names in names_of_properties):
            named.update(_NEED_TYPE & part.keys())
            if not _PARTS & part.keys():
                named.update(_NEED_TYPE_OR_PARTS & part.keys())
        elif _has_unknown_format(part):
            named.add("format")
        named.update(_ignored_in_company(part))
    return sorted(named)


def _ignored_in_company(part: dict[str, Any]) -> set[str]:
    """What a schema's own keywords keep the library from obeying."""
    named: set[str] = set()
    if (alone := next((key for key in _ALONE if key in part), None)) is not None:
        constraints = {*_NEED_TYPE, *_NEED_TYPE_OR_PARTS, *_PARTS, *_ALONE} - {alone}
        named.update(constraints & part.keys())
    if "pattern" in part:
        named.update({"minLength", "maxLength"} & part.keys())
    properties, required = part.get("properties", {}), part.get("required")
    if (
        isinstance(required, list)
        and isinstance(properties, dict)
        and set(required) - set(properties)
    ):
        named.add("required")
    reference = part.get("$ref")
    if isinstance(reference, str) and not (reference == "#" or reference.startswith("#/")):
        named.add("$ref")
    return named


def unsupported_by_guidance(schema: object) -> list[str]:
    """Names of the features for which vLLM, under `auto`, does not send a schema to llguidance
    (`vllm/v1/structured_output/backend_guidance.py:48 has_guidance_unsupported_json_features`).

    The library enforces this one, and refuses on its own what it cannot do.
    """
    return ["patternProperties"] if any("patternProperties" in o for o in _objects(schema)) else []


def close_objects(schema: object) -> None:
    """Give every object that lists properties `additionalProperties: false`, in place
    (`vllm/v1/structured_output/backend_guidance.py:35 _walk_json_for_additional_properties`)."""
    if isinstance(schema, dict):
        for value in schema.values():
            close_objects(value)
        if "additionalProperties" not in schema and schema.keys() & {
            "properties",
            "patternProperties",
        }:
            schema["additionalProperties"] = False
    elif isinstance(schema, list):
        for item in schema:
            close_objects(item)
