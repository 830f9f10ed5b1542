"""What the lab's tests and scripts share: tools, texts that a model may write, what vLLM made of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parent / "recorded.json"
START, END = "<tool_call>", "</tool_call>"


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    """A tool as it stands in a request."""
    function: dict[str, Any] = {"name": name}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def named(name: str) -> dict[str, Any]:
    """The `tool_choice` that asks for one tool."""
    return {"type": "function", "function": {"name": name}}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


BOOK_REPAIR = tool(
    "book_repair",
    _object(item={"type": "string", "maxLength": 12}, days={"type": "integer"}),
)
LOOK_UP = tool("look_up", _object(part={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,4}$"}))
HANG_UP = tool("hang_up")
TOOLS = [BOOK_REPAIR, LOOK_UP, HANG_UP]
SETS: dict[str, list[dict[str, Any]]] = {
    "all three": TOOLS,
    "one tool": [LOOK_UP],
    "parameters None": [{"type": "function", "function": {"name": "ping", "parameters": None}}],
    "parameters {}": [tool("note", {}), BOOK_REPAIR],
    "a description": [
        {"type": "function", "function": {**LOOK_UP["function"], "description": "Find a part."}}
    ],
}
"""Tools of a request, by what is special about them."""


def choices(tools: Sequence[dict[str, Any]]) -> list[Any]:
    """Every `tool_choice` there is for these tools."""
    return ["none", "auto", "required", *(named(one["function"]["name"]) for one in tools)]


def read_tag(rule: Any) -> tuple[list[str], list[tuple[str, Any, str]]]:
    """The triggers of a structural tag, and of each of its tags begin, schema and end.

    It may have either of the two forms that vLLM reads.
    """
    tag = json.loads(rule["structural_tag"])
    if "structures" in tag:
        found = [(one["begin"], one["schema"], one["end"]) for one in tag["structures"]]
        return tag["triggers"], found
    inner = tag["format"]
    found = [(one["begin"], one["content"]["json_schema"], one["end"]) for one in inner["tags"]]
    return inner["triggers"], found


# ---- texts ---------------------------------------------------------------------------------------

LINE = (
    'Let me see.\n<tool_call>\n{"name": "book_repair", "arguments": {"item": "kettle", "days": 3}}'
    "\n</tool_call>"
)
SHORT = (
    f'{LINE}\n<tool_call>\n{{"name": "look_up", "arguments": {{"part": "KX-1190"}}\n</tool_call>'
)
"""Two calls; the second lacks its last brace."""


UNUSUAL: dict[str, tuple[str, list[list[str]]]] = {
    "line breaks": (
        f'{START}\n{{\n"name"\n:\n"look_up"\n,\n"arguments"\n:\n{{}}\n}}\n{END}',
        [["look_up", "{}"]],
    ),
    "a name of other characters": (
        f'{START}{{"name": "look-up.é 2", "arguments": {{}}}}{END}',
        [["look-up.é 2", "{}"]],
    ),
    "a start tag in a call": (
        f'{START}{{"name": "look_up", "arguments": {{"part": "{START}"}}}}{END}',
        [["look_up", f'{{"part": "{START}"}}']],
    ),
    "no name": (
        f'{START}{{"arguments": {{}}}}{END}{START}{{"name": "look_up", "arguments": {{}}}}{END}',
        [],
    ),
    "no arguments": (
        f'{START}{{"name": "hang_up"}}{END}{START}{{"name": "look_up", "arguments": {{}}}}{END}',
        [["hang_up", ""], ["look_up", "{}"]],
    ),
}
"""Texts and the calls that a client gets of them in a stream."""


@dataclass
class Made:
    """A text whose calls can all be read, and where what stands in it.

    Attributes:
        text: all of it.
        content: what comes before the first tag.
        names: the calls' names.
        arguments: their arguments, as they stand in the text.
        name_at: for each call, how many characters have come when its name is complete.
        arguments_at: for each call, where its arguments begin.
    """

    text: str = ""
    content: str = ""
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    name_at: list[int] = field(default_factory=list)
    arguments_at: list[int] = field(default_factory=list)


WORDS = ("kettle", "a < b", "</tool_", "}", "{", '"', "\\", "\n", "é", "漢", "<", "name", "KX-1190")
PROSE = (
    "", "", "Let me see.\n", "a < b, and <tool", "</tool_call> is a tag", "<<", "{}", "\n\n", "<tool_ca<"
)  # fmt: skip


def _value(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(7 if depth < 2 else 4)
    if kind == 0:
        return draw.choice([0, 3, -12, 2.5, True, False, None])
    if kind < 4:
        return "".join(draw.choices(WORDS, k=draw.randrange(4)))
    if kind == 4:
        return [_value(draw, depth + 1) for _ in range(draw.randrange(3))]
    return _arguments(draw, depth + 1)


def _arguments(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    keys = draw.sample(["item", "days", "part", "name", "arguments", "é"], draw.randrange(4))
    return {key: _value(draw, depth) for key in keys}


def draw_text(seed: int) -> Made:
    """A text with one to three calls that can all be read; the same one for a seed."""
    draw = random.Random(seed)
    made = Made(text=draw.choice(PROSE))
    made.content = made.text
    count = draw.choice([1, 1, 2, 3])
    for number in range(count):
        name = draw.choice(["book_repair", "look_up", "hang_up"])
        arguments = json.dumps(
            _arguments(draw),
            ensure_ascii=draw.random() < 0.3,
            indent=draw.choice([None, None, None, 1]),
            separators=draw.choice([None, None, (",", ":")]),
        )
        blank, colon = draw.choice(["\n", "\n", "", " \n "]), draw.choice([": ", ": ", ":", " : "])
        made.text += f'{START}{blank}{{"name"{colon}"{name}"'
        made.name_at.append(len(made.text))
        made.text += f',{draw.choice([" ", ""])}"arguments"{colon}'
        made.arguments_at.append(len(made.text))
        made.text += f"{arguments}{draw.choice(['', '', ' '])}}}{blank}"
        made.names.append(name)
        made.arguments.append(arguments)
        if number < count - 1 or draw.random() < 0.8:  # the last end tag may be missing
            made.text += END + draw.choice(["\n", "", " and then\n"])
    return made


def spoil(seed: int) -> str:
    """A text with calls of which one cannot be read, for one of many reasons."""
    draw = random.Random(seed)
    text = draw_text(seed).text
    first = text.index(START)
    if draw.random() < 0.4:
        return text[: draw.randrange(first + len(START), len(text))]  # cut off by max_tokens
    old, new = draw.choice(
        [
            ("}", ""), ('"', ""), (":", ""), ('"name"', '"tool"'), ('"arguments"', '"parameters"'),
            (START, START * 2), (END, ""), (END, END[:-1]), ('"arguments"', "arguments"),
        ]
    )  # fmt: skip
    places = [at for at in range(first, len(text)) if text.startswith(old, at)]
    at = draw.choice(places or [first])
    return text[:at] + new + text[at + len(old) :]


# ---- streams -------------------------------------------------------------------------------------


def cuts(text: str, seed: int = 0, every: int = 1) -> Iterator[list[str]]:
    """A text at once, one character at a time, in every (or every so many-th) two pieces, and ten times in
    pieces of one to nine characters."""
    yield [text]
    yield list(text)
    for at in range(1, len(text), every):
        yield [text[:at], text[at:]]
    draw = random.Random(seed)
    for _ in range(10):
        pieces, at = [], 0
        while at < len(text):
            size = draw.randrange(1, 10)
            pieces.append(text[at : at + size])
            at += size
        yield pieces


@dataclass
class Seen:
    """What a client has put together from the pieces.

    Attributes:
        content: the pieces of text, joined.
        calls: for each call a list: its name, and the pieces of its arguments joined.
        wrong: what is wrong with the pieces themselves; "" if nothing is.
    """

    content: str = ""
    calls: list[list[str]] = field(default_factory=list)
    wrong: str = ""

    def take(self, deltas: Iterable[Any]) -> None:
        """Put some pieces where they belong."""
        for delta in deltas:
            given = [bool(delta.content), bool(delta.name), bool(delta.arguments)]
            if sum(given) != 1 or (delta.index is None) != bool(delta.content):
                self.wrong = self.wrong or f"{delta} is none of the three kinds of pieces"
            elif delta.content:
                self.content += delta.content
            elif delta.name and delta.index == len(self.calls):
                self.calls.append([delta.name, ""])
            elif delta.arguments and delta.index < len(self.calls):
                self.calls[delta.index][1] += delta.arguments
            else:
                self.wrong = self.wrong or f"{delta} comes after {len(self.calls)} names"


def stream(lab: Any, pieces: Iterable[str]) -> Seen:
    """A text through the lab's `CallStream`."""
    reader, seen = lab.CallStream(), Seen()
    for piece in pieces:
        seen.take(reader.feed(piece))
    seen.take(reader.finish())
    return seen


def where_they_differ(first: str, second: str) -> str:
    """Two texts, from just before the first difference."""
    pairs = enumerate(zip(first, second, strict=False))
    at = next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))
    at = max(0, at - 12)
    return f"…{first[at : at + 40]!r} and …{second[at : at + 40]!r}"


@cache
def recorded() -> dict[str, Any]:
    """What vLLM and xgrammar made of it; in_vllm.py says what each part is."""
    found: dict[str, Any] = json.loads(RECORDED.read_text("utf-8"))
    return found
