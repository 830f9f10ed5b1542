"""Two schemas at once (`allOf`, and what stands beside `$ref`), and whether two exclude each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mini_vllm.structured_output.automata.keywords import (
    TYPES,
    Flat,
    join_path,
    refuse,
    same_value,
    types_of,
)
from mini_vllm.structured_output.automata.limits import RuleTooLarge

MOST_OPTIONS = 200
"""That are compared with each other, or put together from those of several schemas."""
_MOST_PAIRS = 100_000
_NAMED = ("properties", "patternProperties", "additionalProperties")

Schema = dict[str, Any] | bool
FlatSchema = Flat | bool
"""Keywords without `$ref` and `allOf`; or everything, or nothing."""


def both(left: Schema, right: Schema) -> Schema:
    """A schema for what fits both, without looking into them."""
    if left is True or left == right:
        return right
    if right is True:
        return left
    return False if left is False or right is False else {"allOf": [left, right]}


def merge(left: FlatSchema, right: FlatSchema, path: str) -> FlatSchema:
    """What fits both. False if their types or values leave nothing.

    Raises:
        UnsupportedRule: two patterns, formats or lists of `oneOf` that differ.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return right if left is True else left if right is True else False
    for ours, theirs in ((left, right), (right, left)):
        if "patternProperties" in ours and not theirs.keys().isdisjoint(_NAMED):
            raise refuse(path, "patternProperties and other properties at once are not supported")
    merged = {**left, **right}
    for key in left.keys() & right.keys():
        if key in _MERGED:
            merged[key] = _MERGED[key](left[key], right[key])
        elif key == "anyOf":
            if len(left[key]) * len(right[key]) > MOST_OPTIONS:
                place = join_path(path, "allOf")
                raise RuleTooLarge(f"{place}: more than {MOST_OPTIONS} options of anyOf")
            merged[key] = [both(a, b) for a in left[key] for b in right[key]]
        elif left[key] != right[key]:
            raise refuse(path, f"two different {key} at once are not supported")
    _merge_objects(left, right, merged)
    _merge_arrays(left, right, merged)
    if merged.get("type") == frozenset() or merged.get("enum") == []:
        return False
    for least, most in (
        ("minItems", "maxItems"),
        ("minLength", "maxLength"),
        ("minProperties", "maxProperties"),
    ):
        if merged.get(least, 0) > merged.get(most, merged.get(least, 0)):
            # Values of other types still fit.
            return merge(merged_without(merged, least, most), {"type": _other_types(least)}, path)
    return merged


def merged_without(flat: Flat, *keys: str) -> Flat:
    """The same without these keywords."""
    return {key: value for key, value in flat.items() if key not in keys}


def _other_types(keyword: str) -> frozenset[str]:
    owner = {"minItems": "array", "minLength": "string", "minProperties": "object"}[keyword]
    return frozenset(TYPES) - {owner}


def _common_types(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    whole = {"integer"} if "integer" in left | right else set[str]()
    found = frozenset(
        t for t in (*TYPES, *whole)
        if (t in left or (t == "integer" and "number" in left))
        and (t in right or (t == "integer" and "number" in right))
    )  # fmt: skip
    return found - {"integer"} if "number" in found else found


def _common_values(left: list[Any], right: list[Any]) -> list[Any]:
    if len(left) * len(right) > _MOST_PAIRS:
        raise RuleTooLarge(f"enum: {len(left)} and {len(right)} values are too many to compare")
    return [value for value in left if any(same_value(value, other) for other in right)]


_MERGED: dict[str, Callable[[Any, Any], Any]] = {
    "type": _common_types,
    "enum": _common_values,
    "required": lambda left, right: list(dict.fromkeys((*left, *right))),
    **dict.fromkeys(
        ["minProperties", "minItems", "minLength", "minimum", "exclusiveMinimum"], max
    ),
    **dict.fromkeys(
        ["maxProperties", "maxItems", "maxLength", "maximum", "exclusiveMaximum"], min
    ),
    "properties": lambda left, right: {},  # these depend on each other: see below
    "additionalProperties": both,
    "propertyNames": both,
    "prefixItems": lambda left, right: [],
    "items": both,
}  # fmt: skip


def _merge_objects(left: Flat, right: Flat, merged: Flat) -> None:
    """A property that only one of them names is to the other an additional one."""
    ours, theirs = left.get("properties", {}), right.get("properties", {})
    if ours or theirs:
        merged["properties"] = {
            name: both(
                ours.get(name, left.get("additionalProperties", True)),
                theirs.get(name, right.get("additionalProperties", True)),
            )
            for name in {**ours, **theirs}
        }


def _merge_arrays(left: Flat, right: Flat, merged: Flat) -> None:
    ours, theirs = left.get("prefixItems", []), right.get("prefixItems", [])
    if ours or theirs:
        merged["prefixItems"] = [
            both(
                ours[at] if at < len(ours) else left.get("items", True),
                theirs[at] if at < len(theirs) else right.get("items", True),
            )
            for at in range(max(len(ours), len(theirs)))
        ]


def exclude_each_other(
    left: FlatSchema,
    right: FlatSchema,
    flatten: Callable[[Schema, str], FlatSchema],
    path: str,
    depth: int = 3,
) -> bool:
    """Whether it is easy to see that no value fits both: their types differ, or their values, or they are
    objects that must have a property whose values differ, so many objects deep at most."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is False or right is False
    shared = _common_types(_possible_types(left), _possible_types(right))
    if not shared:
        return True
    if "enum" in left and "enum" in right:
        return not _common_values(left["enum"], right["enum"])
    if shared != {"object"} or depth == 0:
        return False
    for name in left.get("required", []):
        if name in right.get("required", []):
            values = [
                flatten(side.get("properties", {}).get(name, True), join_path(path, name))
                for side in (left, right)
            ]
            if exclude_each_other(values[0], values[1], flatten, path, depth - 1):
                return True
    return False


def _possible_types(flat: Flat) -> frozenset[str]:
    types = flat.get("type", frozenset(TYPES))
    if "enum" not in flat:
        return frozenset(types)
    of_values = [types_of(value) for value in flat["enum"]]
    narrow = (t - {"number"} if "integer" in t else t for t in of_values)
    return _common_types(types, frozenset[str]().union(*narrow))
