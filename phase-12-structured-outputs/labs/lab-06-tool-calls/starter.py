"""Lab 12-06: from tools to a rule, and from text back to calls. Your work: every NotImplementedError."""

from __future__ import annotations

import json  # noqa: F401
import re  # noqa: F401
from dataclasses import dataclass
from typing import Any

START, END = "<tool_call>", "</tool_call>"
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
"""What a tool without parameters takes."""


@dataclass(frozen=True)
class Call:
    """Given: a call that has been read. `arguments` is JSON, as text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """Given: what a model's text is to the client. `content` is None if there are calls and no text."""

    content: str | None
    calls: list[Call]


@dataclass(frozen=True)
class Delta:
    """Given: one piece of a streamed reply. It is of one of three kinds.

    `Delta(content="Let me")`, `Delta(index=0, name="look_up")` or `Delta(index=0, arguments='{"pa')`.

    Attributes:
        content: text for the customer.
        index: which call the piece belongs to, counted from 0. None with `content`.
        name: the call's whole name.
        arguments: the next characters of the call's arguments.
    """

    content: str = ""
    index: int | None = None
    name: str = ""
    arguments: str = ""


def object_length(text: str) -> int:
    """Given: how many characters of `text` belong to the JSON object that it begins with.

    All, if the object is not closed in it. A brace inside a string is no brace.
    """
    depth, in_string, escaped = 0, False, False
    for place, character in enumerate(text):
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return place + 1
    return len(text)


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names given there."""
    raise NotImplementedError


# ---- the rule ------------------------------------------------------------------------------------


def tools_to_rule(
    tools: list[dict[str, Any]], tool_choice: str | dict[str, Any], strict: bool = False
) -> dict[str, Any] | None:
    """The rule for the model's text. The README has the schema and the tag.

    Args:
        tools: as in a request, each `{"type": "function", "function": {"name": …, "parameters": …}}`.
            `parameters` is a JSON schema. A tool may lack it, and it may be None.
        tool_choice: `"none"`, `"auto"`, `"required"` or `{"type": "function", "function": {"name": …}}`.
        strict: with `"auto"`, write a structural tag. The other choices do not look at it.

    Returns:
        `{"json": schema}`, with a dict; `{"structural_tag": text}`, with the tag as JSON text; or None.

    Raises ValueError if the tool that is chosen by name is not among the tools.
    """
    raise NotImplementedError


# ---- the whole text ------------------------------------------------------------------------------


def parse_calls(text: str) -> Reply:
    """Read the calls out of a finished text. The README has the rules.

    A call can be read if `json.loads` turns the text between its tags into an object with a `name`, which
    is a string, and `arguments`, which may be anything.

    Returns:
        The calls in their order, with `arguments` written anew by `json.dumps(…, ensure_ascii=False)`, and
        the text before the first tag, unchanged, or None if that is empty or blank. If there is no call, or
        one of them cannot be read: no calls, and the whole text as it is.
    """
    raise NotImplementedError


# ---- the stream ----------------------------------------------------------------------------------


class CallStream:
    """Reads the calls out of a text that comes in pieces. The README has the rules."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        raise NotImplementedError

    def feed(self, delta: str) -> list[Delta]:
        """Take the next characters of the text, and return all that they make certain, in the text's order.

        A piece is never empty. If nothing is certain, the list is. A name is as it stands in the text.
        """
        raise NotImplementedError

    def finish(self) -> list[Delta]:
        """The text has ended, so what was held back as half a tag is not a tag. Return it if it belongs to
        the content or to a call's arguments; elsewhere drop it. Called once, after the last `feed`."""
        raise NotImplementedError
