"""Lab 12-03: JSON Schema on real vLLM. The reference solution."""

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
    """How a backend writes a document when blanks are disabled.

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
    """Answers to the README's eight questions."""
    return {
        "no longest": ["days"],
        "after the brace": 5,
        "forty tokens": "blanks",
        "starts": ["guidance", "xgrammar"],
        "exactly enough": ("length", "valid"),
        "key order": "cold",
        "free row": -1,
        "free tokens": "the same",
    }


# ---- what a schema allows ------------------------------------------------------------------------


def pieces(schema: Schema, style: Style) -> list[str | Schema]:
    """A document as literal text and the schemas of its values, in order."""
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
    """Every text that a value can be; None for strings and integers without both bounds."""
    if "enum" in schema:
        return [json.dumps(value) for value in schema["enum"]]
    if schema["type"] == "boolean":
        return ["true", "false"]
    if schema["type"] == "integer" and {"minimum", "maximum"} <= schema.keys():
        return [str(number) for number in range(schema["minimum"], schema["maximum"] + 1)]
    return None


def lengths(schema: Schema, style: Style) -> tuple[int, int | None]:
    """The tokens of the shortest and of the longest document; None: there is no longest."""
    shortest, longest = 0, 0
    unbounded = False
    for piece in pieces(schema, style):
        if isinstance(piece, str):
            low = high = len(piece)
        elif (texts := values(piece)) is not None:
            low, high = min(map(len, texts)), max(map(len, texts))
        elif piece["type"] == "string":
            low, high = 2, 2 + style.char_bytes * piece.get("maxLength", 0)
            unbounded |= "maxLength" not in piece
        else:
            low = high = 1
            unbounded = True
        shortest, longest = shortest + low, longest + high
    return shortest, None if unbounded else longest


def safe_max_tokens(schema: Schema, style: Style) -> int | None:
    """The smallest max_tokens with which every document ends by itself; None: none is safe."""
    longest = lengths(schema, style)[1]
    return None if longest is None else longest + 1


def forced(schema: Schema, document: str) -> list[bool]:
    """For each token of a document and the end token behind it: was it the only one allowed?"""
    found: list[bool] = []
    at, may_go_on = 0, False
    for piece in [*pieces(schema, XGRAMMAR), "$"]:  # the sign stands for the end token
        if isinstance(piece, str):
            found += [not may_go_on] + [True] * (len(piece) - 1)
            at, may_go_on = at + len(piece), False
        elif (texts := values(piece)) is not None:
            text = max((t for t in texts if document.startswith(t, at)), key=len)
            for end in range(len(text)):
                nexts = {t[end : end + 1] for t in texts if t.startswith(text[:end])}
                found.append(len(nexts) == 1)
            may_go_on = any(t != text and t.startswith(text) for t in texts)
            at += len(text)
        else:
            close = document.index('"', at + 1)
            inside = document[at + 1 : close]
            found += [True] + [False] * len(inside.encode()) + [len(inside) == piece["maxLength"]]
            at, may_go_on = close + 1, False
    return found


# ---- what came back ------------------------------------------------------------------------------


def verdict(text: str, finish_reason: str) -> str:
    """`valid`, `not JSON`, `blanks` or `cut`."""
    try:
        parsed, readable = json.loads(text), True
    except ValueError:
        parsed, readable = None, False
    if readable and (finish_reason == "stop" or isinstance(parsed, dict)):
        return "valid"
    if finish_reason == "stop":
        return "not JSON"
    outside = "".join(text.split('"')[::2])
    blanks = sum(character.isspace() for character in outside)
    return "blanks" if 2 * blanks > len(text) else "cut"


# ---- compiling, and rows -------------------------------------------------------------------------


def cold(keys: Sequence[tuple[str, str]], backend: str) -> list[bool]:
    """Which of an engine's rules, one request after another, are compiled."""
    known: set[tuple[str, str]] = set()
    found = []
    for kind, text in keys:
        key = ("json", '{"type": "object"}') if kind == "json_object" else (kind, text)
        found.append(backend != "xgrammar" or key not in known)
        known.add(key)
    return found


def place_rows(req_ids: Sequence[str], bound: Sequence[str], rows: Words) -> Words:
    """The rows of a step's bound requests in the batch's order, and free rows for the others."""
    placed = np.full((len(req_ids), rows.shape[1]), -1, dtype=np.int32)
    for req_id, row in zip(bound, rows, strict=True):
        placed[req_ids.index(req_id)] = row
    return placed
