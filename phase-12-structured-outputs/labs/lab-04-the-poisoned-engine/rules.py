"""Given: the rules that the lab's requests send, as fields of `StructuredOutputsParams`."""

from __future__ import annotations

from typing import Any

TICKET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "item": {"type": "string", "maxLength": 12},
        "urgent": {"type": "boolean"},
        "days": {"type": "integer"},
    },
    "required": ["item", "urgent", "days"],
    "additionalProperties": False,
}

RULES: dict[str, dict[str, Any]] = {
    "part": {"regex": "[A-Z]{2}-[0-9]{3,4}"},
    "kind": {"choice": ["repair", "return", "question"]},
    "ticket": {"json": TICKET},
    "name": {"regex": r"\p{L}{3}"},
    "lines": {"choice": ["a\nb", "c"]},
    "lark": {
        "grammar": 'start: "day " j\nj: %json {"type": "integer", "minimum": 0, "maximum": 9}\n'
    },
    "dozen": {"json": {"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": 12}},
    "labels": {
        "json": {
            "type": "object",
            "properties": {"done": {"type": "boolean"}},
            "required": ["done"],
            "patternProperties": {"^x-": {"type": "boolean"}},
        }
    },
    "set": {
        "json": {"type": "array", "items": {"enum": ["x", "y"]}, "uniqueItems": True, "maxItems": 2}
    },
    "not 7": {"json": {"type": "integer", "minimum": 0, "maximum": 9, "not": {"const": 7}}},
    "nothing": {"json": ""},
    "off": {"json_object": False},
}
BACKENDS = ("xgrammar", "guidance", "outlines")
PAIRED = tuple(name for name in RULES if name != "off")
"""Those of which every pair was run under `auto`."""
NAMED = (
    ("xgrammar", "part", "name"), ("xgrammar", "name", "part"), ("xgrammar", "part", "lines"),
    ("xgrammar", "part", "dozen"), ("xgrammar", "part", "not 7"), ("xgrammar", "nothing", "part"),
    ("xgrammar", "part", "off"), ("xgrammar", "kind", "labels"),
    ("guidance", "part", "name"), ("guidance", "name", "kind"), ("guidance", "name", "not 7"),
    ("guidance", "lines", "lark"), ("guidance", "set", "labels"), ("guidance", "nothing", "part"),
    ("guidance", "part", "off"), ("guidance", "dozen", "ticket"),
    ("outlines", "part", "kind"), ("outlines", "labels", "lark"), ("outlines", "name", "lines"),
    ("outlines", "ticket", "nothing"), ("outlines", "dozen", "set"), ("outlines", "kind", "not 7"),
)  # fmt: skip
"""Pairs that were run with the named backend."""
LONGER = (
    ("auto", "off"),
    ("auto", "set", "name", "part", "not 7"),
    ("auto", "set", "part", "dozen", "set", "name", "part"),
)
"""One request, and more than two."""
