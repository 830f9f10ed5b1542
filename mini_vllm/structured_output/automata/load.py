"""A JSON Schema read from text, before its keywords are looked at."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NoReturn

from mini_vllm.structured_output.automata.keywords import is_schema
from mini_vllm.structured_output.automata.limits import (
    Limits,
    RuleError,
    RuleTooLarge,
    UnsupportedRule,
    check_length,
)
from mini_vllm.structured_output.automata.merge import Schema
from mini_vllm.utils.untrusted import shorten_repr

_Pairs = list[tuple[str, Any]]


def load_schema(text: str, limits: Limits) -> Schema:
    """The schema that a text holds.

    Raises:
        UnsupportedRule: it is no JSON or no schema, or has a key twice in one object, a number that is too
            large, or a lone surrogate.
        RuleTooLarge: it is too long, or nested too deep.
    """
    check_length("json", text, limits)

    def check_names(pairs: _Pairs) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise UnsupportedRule(f"the key {shorten_repr(twice)} stands twice in one object")
        return found

    def read_number(digits: str) -> int | Decimal:
        if abs(float(digits)) == float("inf"):
            raise UnsupportedRule(f"the number {shorten_repr(digits)} is too large")
        number = Decimal(digits)
        if number == number.to_integral_value() and number.adjusted() < 20:
            return int(number)
        return number

    def refuse_word(word: str) -> NoReturn:
        raise UnsupportedRule(f"{word} is not JSON")

    try:
        schema = json.loads(
            text,
            object_pairs_hook=check_names,
            parse_float=read_number,
            parse_constant=refuse_word,
        )
    except RuleError:
        raise
    except (ValueError, RecursionError) as error:
        raise UnsupportedRule(f"not JSON: {error}") from error
    if not is_schema(schema):
        raise UnsupportedRule(
            f"a schema, an object or a truth value, is expected, got {shorten_repr(schema)}"
        )
    _check_depth(schema, limits)
    try:
        text_of(schema).encode()
    except UnicodeEncodeError as error:
        raise UnsupportedRule("it has a surrogate, which is no character") from error
    return schema  # type: ignore[no-any-return]


def _check_depth(schema: object, limits: Limits) -> None:
    level = [schema]
    for _ in range(limits.depth):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if level:
        raise RuleTooLarge(f"more than {limits.depth} levels of objects and lists")


def text_of(schema: object) -> str:
    """The schema as JSON again: equal texts are equal schemas."""
    return json.dumps(schema, ensure_ascii=False, default=str)
