"""The tool parsers beside vLLM's own, delta for delta."""

from __future__ import annotations

import copy
import json
import logging
import random
from typing import Any

import pytest

from mini_vllm.tool_parsers import TOOL_PARSERS
from mini_vllm.tool_parsers.streaming import NamedToolStream, RequiredToolStream
from mini_vllm.tool_parsers.utils import get_json_schema_from_tools
from tests.engine.helpers.thorough import either

pytestmark = pytest.mark.vllm

VALUES = (
    "a < b",
    "</tool_",
    "}",
    "{",
    '"',
    "\\",
    "\n",
    "é",
    ",",
    3,
    -2.5,
    True,
    None,
    [],
    {},
    [1, {"a": "}"}],
)
PROSE = ("", "Well.\n", "a <tool", "</tool_call>", "<<")
DAMAGE = (
    ("}", ""), ('"', ""), (":", ""), ('"name"', '"tool"'), ("<tool_call>", ""), ("</tool_call>", ""),
    ("</tool_call>", "</tool_call"), ('"arguments"', '"parameters"'), ("{", ""), (",", ""),
)  # fmt: skip


class Tokenizer:
    """All that vLLM's parser asks of one."""

    def get_vocab(self) -> dict[str, int]:
        return {}


def _arguments(draw: random.Random) -> dict[str, Any]:
    return {
        key: draw.choice(VALUES)
        for key in draw.sample(["part", "name", "days", "é"], draw.randrange(4))
    }


def _dump(draw: random.Random, value: Any) -> str:
    return json.dumps(
        value,
        ensure_ascii=draw.random() < 0.3,
        indent=draw.choice([None, None, 1]),
        separators=draw.choice([None, (",", ":")]),
    )


def draw_hermes(seed: int) -> str:
    """A text with calls, every second one damaged in some place."""
    draw = random.Random(seed)
    text = draw.choice(PROSE)
    for _ in range(draw.choice([1, 1, 2, 3])):
        call = _dump(draw, {"name": draw.choice(["look_up", "fly"]), "arguments": _arguments(draw)})
        blank = draw.choice(["\n", "", " "])
        text += f"<tool_call>{blank}{call}{blank}</tool_call>{draw.choice(PROSE)}"
    if seed % 2:
        old, new = draw.choice(DAMAGE)
        at = draw.choice([at for at in range(len(text)) if text.startswith(old, at)])
        text = text[:at] + new + text[at + len(old) :]
    return text[: draw.randrange(len(text))] if draw.random() < 0.2 else text


def pieces(text: str, seed: int) -> list[str]:
    """One character each, or one to nine."""
    draw, found, at = random.Random(seed), [], 0
    most = draw.choice([1, 2, 9, 40])
    while at < len(text):
        size = draw.randint(1, most)
        found.append(text[at : at + size])
        at += size
    return found


def plain(message: Any) -> Any:
    """A delta of vLLM's as it goes over the wire, or of ours, without the calls' ids."""
    if message is None:
        return None
    data = message if isinstance(message, dict) else message.model_dump(exclude_unset=True)
    for call in data.get("tool_calls", ()):
        if "id" in call:
            assert call["id"].startswith("chatcmpl-tool-")
            call["id"] = "ID"
    return data


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    import vllm.logger  # noqa: F401

    logging.getLogger("vllm").setLevel(logging.CRITICAL)


@pytest.fixture(scope="module")
def request_of() -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    def make(tools: Any, tool_choice: Any) -> Any:
        return ChatCompletionRequest(
            model="m", messages=[], tools=copy.deepcopy(tools), tool_choice=tool_choice
        )

    return make


def _tool(name: str, *parameters: Any) -> dict[str, Any]:
    function = {"name": name, **({"parameters": parameters[0]} if parameters else {})}
    return {"type": "function", "function": function}


def test_the_schema_of_a_choice(request_of: Any) -> None:
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    thing = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"type": "string"}},
    }
    sets = [
        [_tool("f")],
        [_tool("f", None), _tool("g", {})],
        [_tool("f", thing), _tool("g", copy.deepcopy(thing)), _tool("h", {"$defs": {"b": {}}})],
    ]
    for tools in sets:
        names = [one["function"]["name"] for one in tools]
        named: list[Any] = [{"type": "function", "function": {"name": name}} for name in names]
        for choice in ["auto", "required", *named]:
            request = request_of(tools, choice)
            request = Hermes2ProToolParser(Tokenizer(), request.tools).adjust_request(request)
            rule = request.structured_outputs
            theirs = None if rule is None else rule.json
            assert get_json_schema_from_tools(choice, tools) == theirs, (names, choice)
            assert request.skip_special_tokens is False


def test_hermes(request_of: Any) -> None:
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    request = request_of([_tool("f")], "auto")
    called = 0
    for seed in range(either(400, 20_000)):
        text = draw_hermes(seed)
        theirs = Hermes2ProToolParser(Tokenizer()).extract_tool_calls(text, request)
        ours = TOOL_PARSERS["hermes"]().extract_tool_calls(text)
        calls = [(call.function.name, call.function.arguments) for call in theirs.tool_calls]
        assert [(call.name, call.arguments) for call in ours.tool_calls] == calls, text
        assert (ours.tools_called, ours.content) == (theirs.tools_called, theirs.content), text
        called += bool(calls)
        there, here, shown = Hermes2ProToolParser(Tokenizer()), TOOL_PARSERS["hermes"](), ""
        for piece in pieces(text, seed):
            before, shown = shown, shown + piece
            delta = there.extract_tool_calls_streaming(before, shown, piece, [], [], [], request)
            assert plain(here.extract_tool_calls_streaming(shown)) == plain(delta), (shown, piece)
        assert here.prev_tool_call_arr == there.prev_tool_call_arr
        assert here.streamed_args_for_tool == there.streamed_args_for_tool
    assert called > 100


def test_under_a_rule() -> None:
    """Lists of calls in pieces, and the same pieces as the arguments of one tool."""
    from vllm.tool_parsers.streaming import (
        extract_named_tool_call_streaming,
        extract_required_tool_call_streaming,
    )

    for seed in range(either(300, 20_000)):
        draw = random.Random(seed)
        calls = [
            {"name": draw.choice(["f", "look_up"]), "parameters": _arguments(draw)}
            for _ in range(draw.randint(1, 3))
        ]
        text = _dump(draw, calls)
        required, named, shown = RequiredToolStream(), NamedToolStream("f"), ""
        returned = named_returned = False
        for piece in pieces(text, seed):
            before, shown = shown, shown + piece
            try:
                theirs, returned = extract_required_tool_call_streaming(
                    previous_text=before, current_text=shown, delta_text=piece,
                    function_name_returned=returned, tool_call_idx=0, tool_call_id_type="random",
                )  # fmt: skip
            except (AssertionError, IndexError):  # its library's, which ends the stream
                break
            assert plain(required.feed(before, piece)) == plain(theirs), (shown, piece)
            delta, named_returned = extract_named_tool_call_streaming(
                delta_text=piece, function_name="f", function_name_returned=named_returned,
                tool_call_idx=0, tool_call_id_type="random", tokenizer=Tokenizer(),
            )  # fmt: skip
            assert plain(named.feed(before, piece)) == plain(delta)
