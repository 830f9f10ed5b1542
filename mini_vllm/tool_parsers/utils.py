"""Helpers of the parsers, and the schema that a tool choice asks for.

Mirrors `vllm/tool_parsers/utils.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

Tool = dict[str, Any]
"""As in a request: `{"type": "function", "function": {"name": …, "parameters": …}}`."""


def partial_tag_overlap(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tag`
    (`vllm/tool_parsers/utils.py:34 partial_tag_overlap`)."""
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)


def is_complete_json(text: str) -> bool:
    """`vllm/tool_parsers/utils.py:133 is_complete_json`."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# ---- the schema ----------------------------------------------------------------------------------


def get_json_schema_from_tools(
    tool_choice: str | dict[str, Any] | None, tools: Sequence[Tool] | None
) -> dict[str, Any] | None:
    """What the text has to be, None: anything
    (`vllm/tool_parsers/utils.py:220 get_json_schema_from_tools`).

    With `auto` and `none` there is no rule; nor is there one for a tool by name that has no `parameters`.

    Raises ValueError if the tool that is chosen by name is not among the tools, or if two tools define one
    name in their `$defs` differently.
    """
    if not tools or tool_choice in ("none", "auto", None):
        return None
    if tool_choice == "required":
        return _list_of_calls(tools)
    assert isinstance(tool_choice, dict)
    name = tool_choice["function"]["name"]
    by_name = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
    if name not in by_name:
        raise ValueError(f"tool_choice: the tool {name!r} is not among {sorted(by_name)}")
    parameters: dict[str, Any] | None = by_name[name]
    return parameters


def _list_of_calls(tools: Sequence[Tool]) -> dict[str, Any]:
    """At least one call, of any tool (`vllm/tool_parsers/utils.py:203 _get_json_schema_from_tools`)."""
    kinds: list[dict[str, Any]] = []
    all_defs: dict[str, Any] = {}
    for tool in tools:
        given = tool["function"].get("parameters")
        parameters = dict(given or {"type": "object", "properties": {}})
        defs = parameters.pop("$defs", {})
        for name, definition in defs.items() if isinstance(defs, dict) else ():
            if all_defs.setdefault(name, definition) != definition:
                raise ValueError(
                    f"tools: $defs has {name!r} in two tools, with different schemas; with "
                    "tool_choice='required' all share one"
                )
        kinds.append(
            {
                "properties": {
                    "name": {"type": "string", "enum": [tool["function"]["name"]]},
                    "parameters": parameters,
                },
                "required": ["name", "parameters"],
            }
        )
    items = {"type": "object", "anyOf": kinds}
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": items}
    return {**schema, "$defs": all_defs} if all_defs else schema


# ---- JSON that is still being written ------------------------------------------------------------


_UNFINISHED = re.compile(r"(-?\d+(?:\.\d+)?)?(?:-|\.|\.?[eE][+-]?\d*)?\Z")


class _EndedError(Exception):
    """The text ended inside a value: `value` is what there is of it, if `known`."""

    def __init__(self, value: Any = None, known: bool = False) -> None:
        super().__init__()
        self.value = value
        self.known = known


def partial_json_loads(text: str) -> Any:
    """What the beginning of a JSON document says so far
    (`vllm/tool_parsers/utils.py:123 partial_json_loads`).

    A list or object that is not closed has the entries that have begun, an open string the characters that
    have come. An entry of an object whose value has not begun is left out, and what stands behind the
    document is not looked at. Upstream asks the library `partial_json_parser`.

    Raises ValueError where this is the beginning of no document, or not yet of a value.
    """
    try:
        return _value(text, 0)[0]
    except _EndedError as end:
        if not end.known:
            raise ValueError(f"no value has begun in {text[:40]!r}") from None
        return end.value


def _blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\n\r":
        at += 1
    return at


def _value(text: str, at: int) -> tuple[Any, int]:
    """A value and where it ends. Raises _EndedError, or ValueError."""
    at = _blanks(text, at)
    if at == len(text):
        raise _EndedError
    if text[at] == "{":
        return _entries(text, at + 1, "}", {})
    if text[at] == "[":
        return _entries(text, at + 1, "]", [])
    if text[at] == '"':
        return _string(text, at)
    if number := _UNFINISHED.match(text, at):  # it may go on
        raise _EndedError(float(number[1]) if number[1] else None, known=bool(number[1]))
    for word, meant in (("true", True), ("false", False), ("null", None)):
        if len(rest := text[at : at + 5]) < len(word) and word.startswith(rest):
            raise _EndedError(meant, known=True)
    value: tuple[Any, int] = json.JSONDecoder().raw_decode(text, at)
    return value


def _string(text: str, at: int) -> tuple[str, int]:
    try:
        found: tuple[str, int] = scanstring(text, at + 1, True)
    except ValueError as error:
        # The text may have ended half way through an escape.
        for end in range(len(text), max(len(text) - 7, at), -1):
            if text[end : end + 1] not in ("", "\\"):
                continue
            try:
                value, after = scanstring(text[:end] + '"', at + 1, True)
            except ValueError:
                continue
            if after == end + 1:
                raise _EndedError(value, known=True) from None
        raise error
    return found


def _entries(text: str, at: int, closing: str, found: Any) -> tuple[Any, int]:
    """A list's or an object's entries, from behind its bracket on."""
    at = _blanks(text, at)
    if text[at : at + 1] == closing:
        return found, at + 1
    while True:
        try:
            key = None
            if closing == "}":
                key, at = _key(text, at)
            value, at = _value(text, at)
            _put(found, key, value)
        except _EndedError as end:
            if end.known:
                _put(found, key, end.value)
            raise _EndedError(found, known=True) from None
        at = _blanks(text, at)
        if at == len(text):
            raise _EndedError(found, known=True)
        if text[at] == closing:
            return found, at + 1
        if text[at] != ",":
            raise ValueError(f"expected ',' or {closing!r} at {at}, got {text[at]!r}")
        at += 1


def _key(text: str, at: int) -> tuple[str, int]:
    """A key, and where its value begins. Raises _EndedError that knows nothing if it is not complete."""
    at = _blanks(text, at)
    if at == len(text):
        raise _EndedError
    if text[at] != '"':
        raise ValueError(f"expected a key at {at}, got {text[at]!r}")
    try:
        key, at = _string(text, at)
    except _EndedError:
        raise _EndedError from None
    at = _blanks(text, at)
    if at == len(text):
        raise _EndedError
    if text[at] != ":":
        raise ValueError(f"expected ':' at {at}, got {text[at]!r}")
    return key, at + 1


def _put(found: Any, key: str | None, value: Any) -> None:
    if key is None:
        found.append(value)
    else:
        found[key] = value
