"""Lab 12-03: JSON Schema on real vLLM. Your work: every NotImplementedError."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Schema = dict[str, Any]
Words = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Style:
    """How a backend writes a document when blanks are disabled. Given.

    Attributes:
        comma, colon: between members, and between a name and its value.
        char_bytes: the most bytes that one character of a string can take.
    """

    comma: str
    colon: str
    char_bytes: int


XGRAMMAR = Style(", ", ": ", 4)
GUIDANCE = Style(",", ":", 6)


def predictions() -> dict[str, Any]:
    """Your answers to the README's eight questions, under the names given there."""
    raise NotImplementedError


# ---- what a schema allows ------------------------------------------------------------------------


def pieces(schema: Schema, style: Style) -> list[str | Schema]:
    """Given. A document as literal text and the schemas of its values, in order.

    An object with a boolean a and a string b is, in xgrammar's style,
    `['{"a": ', {"type": "boolean"}, ', "b": ', {"type": "string"}, '}']`. If a value is an object in turn,
    its pieces stand in its place. A schema that is no object is one piece, itself.
    """
    if schema.get("type") != "object":
        return [schema]
    found: list[str | Schema] = []
    before = "{"
    for name, value in schema["properties"].items():
        found.append(before + json.dumps(name) + style.colon)
        found += pieces(value, style)
        before = style.comma
    return [*found, "}"]


def values(schema: Schema) -> list[str] | None:
    """Given. Every text that a value can be; None for strings, and integers without both bounds."""
    if "enum" in schema:
        return [json.dumps(value) for value in schema["enum"]]
    if schema["type"] == "boolean":
        return ["true", "false"]
    if schema["type"] == "integer" and {"minimum", "maximum"} <= schema.keys():
        return [str(number) for number in range(schema["minimum"], schema["maximum"] + 1)]
    return None


def lengths(schema: Schema, style: Style) -> tuple[int, int | None]:
    """The tokens of the shortest and of the longest document, without the end token. None: no longest.

    A token is a byte. Schemas are what `pieces` and `values` read, and have only ASCII in them: strings with
    `maxLength` (characters) or without, integers with both bounds or not, booleans, enums, and objects that
    have all their properties and no others. An integer without both bounds (it may have
    one) can always be a single digit.
    """
    raise NotImplementedError


def safe_max_tokens(schema: Schema, style: Style) -> int | None:
    """The smallest `max_tokens` with which every document's `finish_reason` is "stop"; None: none is safe."""
    raise NotImplementedError


def forced(schema: Schema, document: str) -> list[bool]:
    """For each token of a document, and for the end token behind it: was it the only one allowed?

    Args:
        schema: every string in it has a `maxLength`, every integer both bounds.
        document: complete, in xgrammar's style. Its strings hold no quotes and no backslashes, since
            xgrammar allows neither in a string with a `maxLength`; they may hold characters of several bytes.

    Returns:
        One for each byte of the document, and one more.
    """
    raise NotImplementedError


# ---- what came back ------------------------------------------------------------------------------


def verdict(text: str, finish_reason: str) -> str:
    """What a reply is worth. `finish_reason` is "stop" or "length".

    Returns:
        `valid`: JSON as `json.loads` takes it, and complete. If the tokens ran out, only an object
            counts as complete, and a list, a string or a number does not: behind a 1 there may have been
            another digit. Blanks behind the object change nothing.
        `not JSON`: the model has stopped, and `json.loads` refuses the text.
        `blanks`: the tokens ran out, the text is not valid, and more than half of all its characters are
            blanks (`str.isspace`) outside of strings. There are no quotes inside strings.
        `cut`: the tokens ran out, the text is not valid, and it is not `blanks`.
    """
    raise NotImplementedError


# ---- compiling, and rows -------------------------------------------------------------------------


def cold(keys: Sequence[tuple[str, str]], backend: str) -> list[bool]:
    """Of an engine's rules, one request after another: is it compiled (True), or found in a cache?

    Args:
        keys: of each rule its kind and its text, as the engine hands them to the backend. Kinds are `json`,
            `regex` and `json_object`, whose text is empty.
        backend: `xgrammar` or `guidance`.
    """
    raise NotImplementedError


def place_rows(req_ids: Sequence[str], bound: Sequence[str], rows: Words) -> Words:
    """The rows of a step's bound requests in the batch's order, and free rows for the others.

    Args:
        req_ids: the batch.
        bound: the requests with a rule, all of them in the batch, in whatever order.
        rows: int32, (len(bound), words): the row of each in `bound`.

    Returns:
        int32, (len(req_ids), words).
    """
    raise NotImplementedError
