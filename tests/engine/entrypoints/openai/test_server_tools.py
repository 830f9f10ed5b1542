"""Tool calls on the server, beside vLLM's own server and through OpenAI's client.

A rule makes the model write the calls: it knows nothing of tools. `server_parity/tools-vllm-0.22.1.jsonl` was
written by `scripts/record_server.py --suite tools`. Every difference is named in `MEANT`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

for package in (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
    "httpx",
):
    pytest.importorskip(package)

from mini_vllm import EngineConfig  # noqa: E402
from mini_vllm.engine.async_llm import AsyncLLM  # noqa: E402
from mini_vllm.entrypoints.openai.app import build_app  # noqa: E402
from mini_vllm.entrypoints.openai.settings import ServerSettings  # noqa: E402
from tests.engine.helpers.server.server_compare import differences  # noqa: E402
from tests.engine.helpers.server.server_helpers import (  # noqa: E402
    MODEL_NAME,
    ServerHere,
    serve_here,
)
from tests.engine.helpers.server.server_play import SERVERS, SUITES, play, requests  # noqa: E402

REQUESTS, ANSWERS = SUITES["tools"]
MEANT: dict[str, str] = {
    r".*: json\.system_fingerprint: ": "two programs",
    r".*: json\.error\.(message|type|param): ": "the words are ours, and name the field",
    r"tools choice null: json\.choices\[0\]\.": "upstream reads the calls and leaves them out",
    r"tools (choice none|none at all) stream: json\.choices\[0\]\.": "upstream looks for calls in any stream",
}
"""A pattern for `NAME: PATH: theirs | ours`, and why the two differ."""

LOOK_UP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"part": {"type": "string", "enum": ["KX-1190", "AB-204"]}},
            "required": ["part"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"part": "KX-1190"}}\n</tool_call>'
FLAGS: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}


@pytest.fixture(scope="module", autouse=True)
def imported() -> bool:
    """Whether xgrammar is there. A request's rule is checked with it, and has ten seconds for that."""
    if importlib.util.find_spec("xgrammar") is None:
        return False
    importlib.import_module("xgrammar")
    return True


# -- beside vLLM's server -------------------------------------------------------------------------


def joined(answer: dict[str, Any]) -> dict[str, Any]:
    """A stream as a client puts it together; how much an event carries depends on who was faster.

    Besides: which keys the first and the last event of a choice have, and each kind of call's piece.
    """
    if "events" not in answer:
        return answer
    choices: dict[int, dict[str, Any]] = {}
    for event in answer["events"]:
        for choice in event.get("choices", ()):
            found = choices.setdefault(
                choice["index"], {"content": "", "calls": {}, "pieces": set(), "ids": []}
            )
            delta = choice["delta"]
            found["content"] += delta.get("content") or ""
            found["ids"] += choice.get("token_ids") or []
            for piece in delta.get("tool_calls", ()):
                # A piece that comes with the end says null where it has nothing.
                both = (piece, piece["function"])
                found["pieces"].add(
                    tuple(k for part in both for k in sorted(part) if part[k] is not None)
                )
                call = found["calls"].setdefault(str(piece["index"]), ["", "", ""])
                for place, text in enumerate(
                    (
                        piece.get("id"),
                        piece["function"].get("name"),
                        piece["function"].get("arguments"),
                    )
                ):
                    call[place] += text or ""
            found["last"] = sorted(choice)
            found["reasons"] = [choice["finish_reason"], choice.get("stop_reason")]
    for found in choices.values():
        found["pieces"] = sorted(map(list, found["pieces"]))
    usage = answer["events"][-1].get("usage")
    whole = {"choices": [choices[index] for index in sorted(choices)], "usage": usage}
    return {"status": answer["status"], "headers": answer["headers"], "json": whole}


@pytest.fixture(scope="module")
def found() -> list[str]:
    """Every difference, as `NAME: PATH: theirs | ours`."""
    llm = AsyncLLM(config=EngineConfig(max_num_seqs=64, scheduling_policy="priority"))
    try:
        apps = {
            name: build_app(
                llm, ServerSettings(served_model_names=("tiny-llama",), **SERVERS[name])
            )
            for name in ("default", "tools")
        }
        ours = {answer["name"]: answer for answer in asyncio.run(play(apps, requests(REQUESTS)))}
    finally:
        llm.shutdown()
    theirs = map(json.loads, ANSWERS.read_text(encoding="utf-8").splitlines()[1:])
    return [
        f"{answer['name']}: {line}"
        for answer in theirs
        for line in differences(joined(answer), joined(ours[answer["name"]]))
    ]


def test_what_differs_from_vllms_server_is_meant(found: list[str]) -> None:
    unknown = [line for line in found if not any(re.match(where, line) for where in MEANT)]
    assert not unknown, "\n".join(unknown)


def test_what_is_meant_still_differs(found: list[str]) -> None:
    idle = [where for where in MEANT if not any(re.match(where, line) for line in found)]
    assert not idle


def test_a_parser_is_named() -> None:
    with pytest.raises(ValueError, match="tool_call_parser must be one of hermes, got 'frog'"):
        ServerSettings(tool_call_parser="frog")
    with pytest.raises(ValueError, match="needs a tool_call_parser"):
        ServerSettings(enable_auto_tool_choice=True)


# -- through OpenAI's client ----------------------------------------------------------------------


TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}{% endfor %}"
)
"""The shipped model's own knows no tools."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHere]:
    template = tmp_path_factory.mktemp("tools") / "template.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    with serve_here(chat_template=template, **FLAGS) as running:
        yield running
        running.check_unharmed()


@pytest.fixture(scope="module")
def client(server: ServerHere) -> Iterator[Any]:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Is KX-1190 there?"}]
    given = {"model": MODEL_NAME, "messages": messages, "temperature": 0, "max_tokens": 160}
    return {**given, "tools": [LOOK_UP], **more}


def test_a_round_with_a_tool(client: Any) -> None:
    """The model calls, the program answers, the model goes on."""
    given = ask(extra_body={"structured_outputs": {"choice": [f"Let me see.\n{CALL}"]}})
    choice = client.chat.completions.create(**given).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see.\n"
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "look_up")
    assert json.loads(call.function.arguments) == {"part": "KX-1190"}
    tool = {"role": "tool", "tool_call_id": call.id, "content": "12"}
    messages = [*given["messages"], choice.message.model_dump(exclude_none=True), tool]
    again = ask(messages=messages, max_tokens=5, tool_choice="none")
    assert client.chat.completions.create(**again).usage.completion_tokens <= 5


def test_the_clients_own_stream(client: Any) -> None:
    """Its accumulator puts the pieces together, and says of each what has come."""
    given = ask(extra_body={"structured_outputs": {"choice": [CALL + CALL]}})
    with client.chat.completions.stream(**given) as stream:
        kinds = [event.type for event in stream]
        choice = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert choice.finish_reason == "tool_calls"
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [("look_up", '{"part": "KX-1190"}')] * 2


def test_required_and_by_name(client: Any) -> None:
    """A rule is obeyed: the arguments fit the schema."""
    named = {"type": "function", "function": {"name": "look_up"}}
    for choice in ("required", named):
        answer = client.chat.completions.create(**ask(tool_choice=choice, seed=3)).choices[0]
        assert answer.message.content == ""
        if answer.finish_reason == "length":  # blanks without end
            continue
        (call, *_) = answer.message.tool_calls
        assert call.function.name == "look_up"
        assert json.loads(call.function.arguments)["part"] in ("KX-1190", "AB-204")


def test_a_structural_tag_beside_tools(server: ServerHere, imported: bool) -> None:
    """`auto` leaves a client's own tag in place, and what it lets through is a call."""
    if not imported:
        pytest.skip("structural tags need xgrammar")
    begin = '<tool_call>\n{"name": "look_up", "arguments": '
    content = {"type": "json_schema", "json_schema": LOOK_UP["function"]["parameters"]}
    tag = {"type": "tag", "begin": begin, "content": content, "end": "}\n</tool_call>"}
    form = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [tag]}
    form |= {"at_least_one": True, "stop_after_first": True}
    bodies = [{"prompt": blank, "add_special_tokens": False} for blank in " \t\n\r"]
    blanks = [server.send("/tokenize", body).json["tokens"][0] for body in bodies]
    answer = server.chat(
        "Is it there?",
        tools=[LOOK_UP],
        response_format={"type": "structural_tag", "format": form},
        logit_bias={str(token): -100 for token in blanks},  # or it may write them without end
        max_tokens=120,
    )
    assert answer.status == 200, answer.json
    (choice,) = answer.json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["part"] in ("KX-1190", "AB-204")


def test_a_schema_that_is_none_ends_its_own_request(server: ServerHere) -> None:
    """A 400 that names the tools, and the server goes on."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "frog"}}}
    answer = server.chat("Hello", tools=[tool], tool_choice="required", max_tokens=5)
    assert answer.status == 400
    assert answer.error["param"] == "tools"
    assert "frog" in answer.error["message"]
