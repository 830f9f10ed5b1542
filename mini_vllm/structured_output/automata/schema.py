"""A JSON Schema, draft 2020-12, as rules that call each other.

Every document that the rules match is valid. Not every valid document is matched:

* Properties come in the schema's order, additional ones after them. An object whose schema has
  `properties` or `patternProperties` has no others unless `additionalProperties` says so, and an array
  whose schema has `prefixItems` none beside them unless `items` does, as with xgrammar.
* A string with a length, a pattern or a format has no escapes where it can do without, and a pattern is
  for the whole string or name.
* A whole number is written without a point; a number with a bound without an exponent.
* Values of `enum` and `const` are written without blanks.

What is not supported is refused, with its path: no keyword is passed over but those that say nothing
(`keywords.py`).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from mini_vllm.structured_output.automata.checks import prune, refuse_left_recursion
from mini_vllm.structured_output.automata.json_rules import json_rules
from mini_vllm.structured_output.automata.keywords import (
    TYPES,
    Flat,
    check_keywords,
    is_schema,
    join_path,
    refuse,
    types_of,
)
from mini_vllm.structured_output.automata.limits import (
    DEFAULT_LIMITS,
    Limits,
    RuleError,
    RuleTooLarge,
    UnsupportedRule,
)
from mini_vllm.structured_output.automata.load import load_schema, text_of
from mini_vllm.structured_output.automata.merge import (
    MOST_OPTIONS,
    FlatSchema,
    Schema,
    exclude_each_other,
    merge,
    merged_without,
)
from mini_vllm.structured_output.automata.numbers import decimals, integers, interval_of
from mini_vllm.structured_output.automata.regex import parse_regex
from mini_vllm.structured_output.automata.strings import (
    PLAIN,
    REST_OF_STRING,
    formatted,
    json_text,
    other_keys,
    pattern,
    quoted,
)
from mini_vllm.structured_output.automata.syntax import (
    EMPTY,
    NOTHING,
    Call,
    Characters,
    Either,
    Joined,
    Listed,
    Node,
    Repeated,
    literal,
    optional,
)
from mini_vllm.utils.untrusted import shorten_repr

_CONSTRAINTS = {
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties",
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}  # fmt: skip
_MOST_WORK = 2_000_000


def parse_schema(
    text: str, any_whitespace: bool, limits: Limits = DEFAULT_LIMITS
) -> tuple[Node, dict[str, Node]]:
    """The tree and the rules for `Pushdown`.

    Args:
        text: the schema.
        any_whitespace: see `json_rules`.
        limits: bounds on it.

    Raises:
        UnsupportedRule: it is malformed, or has what is not supported, or no document fits. The message
            begins with the place in the schema: `properties.item.pattern: regex, character 1: ...`.
        RuleTooLarge: it passes the limits.
    """
    schema = load_schema(text, limits)
    builder = _Builder(schema, any_whitespace, limits)
    try:
        root = builder.refer(schema, "")
        builder.build()
    except RecursionError as error:  # `allOf` may nest what it puts together
        raise RuleTooLarge("its schemas are nested too deep") from error
    refuse_left_recursion(builder.rules)
    rules = prune(builder.rules)
    if root.rule not in rules:
        raise UnsupportedRule(
            "; ".join(["no document fits this schema", *builder.contradictions[:1]])
        )
    return root, rules


class _Builder:
    """Makes a rule of every schema inside a schema. Equal ones share a rule.

    Attributes:
        rules: by name: the path of the schema.
        contradictions: schemas inside that nothing fits.
    """

    def __init__(self, root: Schema, any_whitespace: bool, limits: Limits) -> None:
        self._root = root
        self._limits = limits
        self._blanks = parse_regex(r"[ \n\r\t]*" if any_whitespace else "")
        after = self._blanks if any_whitespace else literal(" ")
        self._comma = Joined((self._blanks, literal(","), after))
        self._colon = Joined((self._blanks, literal(":"), after))
        self.rules = json_rules(any_whitespace)
        self.rules["rest of a string"] = parse_regex(REST_OF_STRING)
        self._any = {name: Call(name) for name in ("value", "object", "array", "string", "number")}
        self._names: dict[str, str] = {}
        self._pending: list[tuple[str, Schema, str]] = []
        self._flat: dict[str, FlatSchema] = {}
        self._work = 0
        self.contradictions: list[str] = []

    def refer(self, schema: Schema, path: str) -> Call:
        """A call of the schema's rule, which `build` makes."""
        if isinstance(schema, dict) and schema.keys() == {"$ref"}:
            target, path = self._resolve(schema["$ref"], join_path(path, "$ref"))
            schema = target
        key = self._count(schema)
        if key not in self._names:
            self._names[key] = self._new_rule(path or "the schema", NOTHING)
            self._pending.append((self._names[key], schema, path))
        return Call(self._names[key])

    def _new_rule(self, name: str, body: Node) -> str:
        if len(self.rules) >= self._limits.rules:
            raise RuleTooLarge(f"more than {self._limits.rules} schemas in it")
        while name in self.rules:
            name += "'"
        self.rules[name] = body
        return name

    def _count(self, schema: Schema) -> str:
        key = text_of(schema)
        self._work += len(key)
        if self._work > _MOST_WORK:
            raise RuleTooLarge(f"its parts together have more than {_MOST_WORK} characters")
        return key

    def build(self) -> None:
        """Make the rules that were referred to, and those that they refer to."""
        while self._pending:
            name, schema, path = self._pending.pop()
            self.rules[name] = self._body(self.flatten(schema, path), path)

    def _resolve(self, reference: object, path: str) -> tuple[Schema, str]:
        """What a reference leads to, and where that is."""
        found: Any = self._root
        if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
            raise refuse(path, f"{shorten_repr(reference)} does not begin with '#/'")
        steps = [_unescape(step) for step in reference.split("/")[1:]]
        for step in steps:
            if isinstance(found, list):
                found = dict(zip(map(str, range(len(found))), found, strict=True)).get(step)
            else:
                found = found.get(step) if isinstance(found, dict) else None
            if isinstance(found, dict) and isinstance(found.get("$id"), str):
                raise refuse(path, "it leads through a schema with an $id")
        if not is_schema(found):
            raise refuse(path, f"{shorten_repr(reference)} leads to no schema")
        return found, ".".join(steps)

    def flatten(self, schema: Schema, path: str, inside: tuple[str, ...] = ()) -> FlatSchema:
        """The keywords of a schema with those of its `$ref` and `allOf`.

        Args:
            schema: the schema.
            path: where it is.
            inside: the schemas of which it is a part, as keys.
        """
        if isinstance(schema, bool):
            return schema
        key = self._count(schema)
        if key in inside:
            raise refuse(path, "it leads to itself before anything is written")
        if len(inside) > self._limits.depth:
            raise RuleTooLarge(
                f"{path}: more than {self._limits.depth} references and allOf in a row"
            )
        if key not in self._flat:
            flat: FlatSchema = check_keywords(schema, path)
            assert isinstance(flat, dict)
            parts = [
                (e, join_path(path, f"allOf.{i}")) for i, e in enumerate(flat.pop("allOf", []))
            ]
            if "$ref" in flat:
                parts.append(self._resolve(flat.pop("$ref"), join_path(path, "$ref")))
            for part, place in parts:
                flat = merge(flat, self.flatten(part, place, (*inside, key)), path)
            self._flat[key] = flat
        return self._flat[key]

    def _nothing(self, path: str, why: str) -> Node:
        self.contradictions.append(f"{path}: {why}" if path else why)
        return NOTHING

    def _body(self, flat: FlatSchema, path: str) -> Node:
        if flat is True:
            return self._any["value"]
        if flat is False:
            return self._nothing(path, "nothing fits")
        for key in ("oneOf", "anyOf"):
            if key in flat:
                return self._one_of(flat, key, path)
        if "enum" in flat:
            return self._enum(flat, path)
        types = flat.get("type", TYPES)
        if not flat.keys() - {"type"} and set(types) == set(TYPES):
            return self._any["value"]
        return Either(tuple(self._of_type(kind, flat, path) for kind in sorted(types)))

    def _one_of(self, flat: Flat, key: str, path: str) -> Node:
        """`anyOf`: each option with what stands beside it. `oneOf`: the same, if no value fits two."""
        rest = _as_schema(merged_without(flat, key))
        places = [join_path(path, f"{key}.{number}") for number in range(len(flat[key]))]
        options: list[Schema] = [
            {"allOf": [option, rest]} if rest else option for option in flat[key]
        ]
        if key == "oneOf":
            if len(options) > MOST_OPTIONS:
                raise RuleTooLarge(f"{join_path(path, key)}: more than {MOST_OPTIONS} options")
            flats = [self.flatten(o, place) for o, place in zip(options, places, strict=True)]
            for b, right in enumerate(flats):
                for a, left in enumerate(flats[:b]):
                    if not exclude_each_other(left, right, self.flatten, path):
                        raise refuse(
                            join_path(path, key),
                            f"a value may fit both {a} and {b}; anyOf is supported",
                        )
        return Either(tuple(self.refer(o, place) for o, place in zip(options, places, strict=True)))

    def _enum(self, flat: Flat, path: str) -> Node:
        if beside := flat.keys() - {"type", "enum"}:
            named = ", ".join(sorted(beside))
            raise refuse(join_path(path, "enum"), f"beside {named} is not supported")
        types = flat.get("type", TYPES)
        values = [value for value in flat["enum"] if types_of(value) & set(types)]
        if not values:
            return self._nothing(join_path(path, "enum"), "no value is of the type")
        return Either(tuple(json_text(value) for value in values))

    def _of_type(self, kind: str, flat: Flat, path: str) -> Node:
        if kind == "null":
            return literal("null")
        if kind == "boolean":
            return Either((literal("true"), literal("false")))
        if kind == "integer":
            return integers(interval_of(flat))
        if not any(key in flat for key in _CONSTRAINTS[kind]):
            return self._any[kind]
        if kind == "number":
            return decimals(interval_of(flat))
        if kind == "string":
            return self._string(flat, path)
        return self._array(flat, path) if kind == "array" else self._object(flat, path)

    def _string(self, flat: Flat, path: str) -> Node:
        if "format" in flat:
            if not {"pattern", "minLength", "maxLength"}.isdisjoint(flat):
                raise refuse(
                    join_path(path, "format"), "beside pattern or a length is not supported"
                )
            return formatted(flat["format"])
        least, most = flat.get("minLength", 0), flat.get("maxLength")
        if "pattern" not in flat:
            if least == 0 and most is None:
                return self._any["string"]
            return quoted(Repeated(Characters(PLAIN), least, most))
        return self._pattern(flat["pattern"], join_path(path, "pattern"), least, most)

    def _pattern(self, regex: str, place: str, least: int = 0, most: int | None = None) -> Node:
        try:
            return pattern(regex, self._limits, least, most)
        except RuleError as error:
            raise type(error)(f"{place}: {error}") from error

    def _array(self, flat: Flat, path: str) -> Node:
        least, most = flat.get("minItems", 0), flat.get("maxItems")
        first = flat.get("prefixItems", [])
        if len(first) > self._limits.depth:
            raise RuleTooLarge(f"{join_path(path, 'prefixItems')}: more than {self._limits.depth}")
        more = self.refer(flat.get("items", not first), join_path(path, "items"))
        items = [self.refer(s, join_path(path, f"prefixItems.{i}")) for i, s in enumerate(first)]
        items = (items or [more])[:most]
        # From the end: whatever follows an item is inside the parentheses that make it optional.
        count = len(items)
        room = None if most is None else most - count
        node: Node = Repeated(Joined((self._comma, more)), max(0, least - count), room)
        for at in reversed(range(count)):
            node = Joined((self._comma if at else EMPTY, items[at], node))
            node = node if at < least else optional(node)
        return self._bracketed("[", node if count else EMPTY, "]")

    def _object(self, flat: Flat, path: str) -> Node:
        required = dict.fromkeys(flat.get("required", []))
        properties = dict(flat.get("properties", {}))
        for name in required:
            # What is not listed fits `additionalProperties`, if that is said, and comes last.
            properties.setdefault(name, flat.get("additionalProperties", True))
        parts: list[tuple[Node, bool]] = []
        for name, schema in properties.items():
            value = self.refer(schema, join_path(path, f"properties.{name}"))
            parts.append((Joined((json_text(name), self._colon, value)), name not in required))
        free = self._free_member(flat, properties, path)
        least, most = flat.get("minProperties", 0), flat.get("maxProperties")
        if most is not None and most < len(required):
            return self._nothing(join_path(path, "maxProperties"), "fewer than required")
        if least > len(required) and (properties or least > 1):
            # Free names may stand twice, so that they cannot be counted.
            why = "is not supported here: name more in required"
            raise refuse(join_path(path, "minProperties"), why)
        if most is not None and properties and (free != NOTHING or most < len(properties)):
            raise refuse(join_path(path, "maxProperties"), "beside properties is not supported")
        if most != 0:
            more = Repeated(Joined((self._comma, free)), 0, None if most is None else most - 1)
            parts.append((Joined((free, more)), least <= len(required)))
        return self._bracketed("{", Listed(tuple(parts), self._comma), "}")

    def _free_member(self, flat: Flat, properties: dict[str, Schema], path: str) -> Node:
        """A property that is not listed, with its name."""
        schema = flat.get("additionalProperties", "properties" not in flat)
        place = join_path(path, "additionalProperties")
        key: Node = self._any["string"]
        for keyword in ("patternProperties", "propertyNames"):
            if keyword in flat and properties:
                raise refuse(join_path(path, keyword), "beside properties is not supported")
        if "propertyNames" in flat:
            names = {"allOf": [{"type": "string"}, flat["propertyNames"]]}
            key = self.refer(names, join_path(path, "propertyNames"))
        if "patternProperties" in flat:
            place = join_path(path, "patternProperties")
            if len(flat["patternProperties"]) != 1 or flat.get("additionalProperties", False):
                raise refuse(place, "more than one, or beside others, is not supported")
            if "propertyNames" in flat:
                raise refuse(place, "beside propertyNames is not supported")
            [(regex, schema)] = flat["patternProperties"].items()
            key = self._pattern(regex, place)
        elif schema is False:
            return NOTHING
        elif properties:
            try:
                key = other_keys(properties, Call("rest of a string"), self._limits)
            except UnsupportedRule as error:
                raise refuse(place, str(error)) from error
        # A rule of its own, since `Listed` writes its parts twice and the names may be many.
        body = Joined((key, self._colon, self.refer(schema, place)))
        return Call(self._new_rule(f"{place} with its name", body))

    def _bracketed(self, opening: str, inside: Node, closing: str) -> Node:
        return Joined((literal(opening), self._blanks, inside, self._blanks, literal(closing)))


def _unescape(step: str) -> str:
    """A step of a JSON pointer inside a URI."""
    return unquote(step).replace("~1", "/").replace("~0", "~")


def _as_schema(flat: Flat) -> Schema:
    """Keywords as a schema again."""
    return {key: sorted(value) if key == "type" else value for key, value in flat.items()}
