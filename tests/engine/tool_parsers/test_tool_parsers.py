"""Tools to a schema, text back to calls. What vLLM answers to the same is in `test_tool_parsers_vllm.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mini_vllm.tool_parsers import TOOL_PARSERS, FunctionCall
from mini_vllm.tool_parsers.streaming import NamedToolStream, RequiredToolStream
from mini_vllm.tool_parsers.utils import get_json_schema_from_tools, partial_json_loads

PART = {"type": "object", "properties": {"part": {"type": "string"}}, "required": ["part"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "look_up", "parameters": PART}},
    {"type": "function", "function": {"name": "hang_up"}},
]
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"part":"KX-1190"}}\n</tool_call>'


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def assemble(deltas: list[dict[str, Any] | None]) -> tuple[str, list[list[str]]]:
    """Content and calls as a client puts them together."""
    content = ""
    calls: list[list[str]] = []
    for delta in deltas:
        content += (delta or {}).get("content") or ""
        for piece in (delta or {}).get("tool_calls", ()):
            function = piece["function"]
            if function.get("name"):
                assert piece["index"] == len(calls)
                assert piece["id"].startswith("chatcmpl-tool-")
                calls.append([function["name"], ""])
            calls[piece["index"]][1] += function.get("arguments") or ""
    return content, calls


def stream_hermes(text: str, size: int = 1) -> tuple[str, list[list[str]]]:
    parser = TOOL_PARSERS["hermes"]()
    ends = range(size, len(text) + size, size)
    return assemble([parser.extract_tool_calls_streaming(text[:end]) for end in ends])


# -- the rule -------------------------------------------------------------------------------------


def test_the_choices_that_set_a_rule() -> None:
    assert get_json_schema_from_tools("none", TOOLS) is None
    assert get_json_schema_from_tools("auto", TOOLS) is None
    assert get_json_schema_from_tools(None, TOOLS) is None
    assert get_json_schema_from_tools("required", []) is None
    assert get_json_schema_from_tools(named("look_up"), TOOLS) == PART
    assert get_json_schema_from_tools(named("hang_up"), TOOLS) is None
    with pytest.raises(ValueError, match=r"'fly' is not among \['hang_up', 'look_up'\]"):
        get_json_schema_from_tools(named("fly"), TOOLS)


def test_required_is_a_list_of_calls() -> None:
    schema = get_json_schema_from_tools("required", TOOLS)
    assert schema is not None
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    first, second = schema["items"]["anyOf"]
    assert first["properties"] == {
        "name": {"type": "string", "enum": ["look_up"]},
        "parameters": PART,
    }
    assert second["properties"]["parameters"] == {"type": "object", "properties": {}}


def test_definitions_are_shared() -> None:
    """`$defs` move to the top, where references find them; the request's tools stay as they were."""
    tools = [
        {"type": "function", "function": {"name": n, "parameters": {"$defs": d, "$ref": "#/$defs/a"}}}
        for n, d in (("f", {"a": {"type": "string"}}), ("g", {"a": {"type": "string"}, "b": {}}))
    ]  # fmt: skip
    before = json.dumps(tools)
    schema = get_json_schema_from_tools("required", tools)
    assert schema is not None
    assert schema["$defs"] == {"a": {"type": "string"}, "b": {}}
    assert json.dumps(tools) == before
    tools[1]["function"]["parameters"]["$defs"]["a"] = {"type": "integer"}  # type: ignore[index]
    with pytest.raises(ValueError, match="'a' in two tools"):
        get_json_schema_from_tools("required", tools)


# -- hermes ---------------------------------------------------------------------------------------


def test_a_finished_text() -> None:
    found = TOOL_PARSERS["hermes"]().extract_tool_calls(f"Well.\n{CALL}\n{CALL} Bye.")
    assert found.content == "Well.\n"
    assert found.tool_calls == [FunctionCall("look_up", '{"part": "KX-1190"}')] * 2
    assert TOOL_PARSERS["hermes"]().extract_tool_calls(CALL).content is None


@pytest.mark.parametrize(
    "text",
    [
        "No call.",
        "<tool_call></tool_call>",
        CALL.replace("}}", "}"),
        CALL + CALL[:-20],
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "hang_up"}</tool_call>',
        "<tool_call>[1]</tool_call>",
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
    ],
)
def test_what_cannot_be_read_is_content(text: str) -> None:
    found = TOOL_PARSERS["hermes"]().extract_tool_calls(text)
    assert (found.tools_called, found.tool_calls, found.content) == (False, [], text)


@pytest.mark.parametrize("size", range(1, 200, 7))
def test_a_stream_however_it_is_cut(size: int) -> None:
    """The arguments come as they were written."""
    calls = [["look_up", '{"part":"KX-1190"}']] * 2
    assert stream_hermes(f"a < b <tool{CALL}\n{CALL} Bye.", size) == ("a < b <tool", calls)


def test_faults_that_are_upstreams() -> None:
    """The last brace of a broken call depends on the cut; what may begin a tag is never sent."""
    text = CALL.replace("}}", "}")
    assert stream_hermes(text)[1] == [["look_up", '{"part":"KX-1190"}']]
    assert stream_hermes(text, len(text))[1] == [["look_up", '{"part":"KX-1190"']]
    assert stream_hermes("a <tool") == ("a ", [])


# -- under a rule ---------------------------------------------------------------------------------


def test_a_tool_by_name() -> None:
    """Every delta is a piece of the arguments, the empty one of the end, too."""
    stream = NamedToolStream("look_up")
    deltas: list[Any] = [stream.feed("", text) for text in ('{"pa', 'rt": "KX"}', "")]
    assert assemble(deltas) == ("", [["look_up", '{"part": "KX"}']])
    assert deltas[-1] == {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}


def test_required() -> None:
    text = (
        '[{"name": "look_up", "parameters": {"part": "KX"}}, {"name": "hang_up", "parameters": {}}]'
    )
    stream = RequiredToolStream()
    deltas = [stream.feed(text[:at], text[at : at + 1]) for at in range(len(text))]
    assert assemble(deltas) == ("", [["look_up", '{"part": "KX"}'], ["hang_up", "{}"]])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('[{"a": 1, "b": [tr', [{"a": 1, "b": [True]}]),
        ('[{"a": "x\\u00', [{"a": "x"}]),
        ('[{"a": -', [{}]),
        ('[{"a": 12', [{"a": 12}]),
        ("[-2.", [-2]),
        ("[2.5e-", [2.5]),
        ('[{"a', [{}]),
        ('[{"a": {}, ', [{"a": {}}]),
        ("[1] and more", [1]),
    ],
)
def test_partial_json(text: str, value: Any) -> None:
    assert partial_json_loads(text) == value


@pytest.mark.parametrize("text", ["", "  ", "-", "x", "[1 2]", "{1", '{"a" 1', '"\n'])
def test_what_begins_no_document(text: str) -> None:
    with pytest.raises(ValueError):
        partial_json_loads(text)
