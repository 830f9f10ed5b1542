"""A chat request's tools: the rule that they become, and the calls in what comes of it.

Mirrors what `vllm/entrypoints/openai/chat_completion/serving.py:85 OpenAIServingChat` and
`vllm/parser/abstract_parser.py:329 DelegatingParser` do about tools. `auto` looks for calls in the text, in
the format of the server's parser, and promises none; `required` and a tool by name put the text under a rule
and read JSON.

Other than upstream: with `tool_choice="none"`, or without tools, a stream is passed on as it is, where
upstream looks for calls in it all the same; and `tool_choice=null` beside tools means `auto`, where upstream
reads the calls of a finished text and then leaves them out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mini_vllm.entrypoints.openai.errors import ApiError, bad_request
from mini_vllm.tool_parsers import TOOL_PARSERS, FunctionCall, ToolParser
from mini_vllm.tool_parsers.abstract_tool_parser import DeltaMessage, make_tool_call_id
from mini_vllm.tool_parsers.streaming import NamedToolStream, RequiredToolStream
from mini_vllm.tool_parsers.utils import get_json_schema_from_tools
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.entrypoints.openai.settings import ServerSettings

_CHOICES = ("none", "auto", "required")


class ToolFields(Protocol):
    """What is asked of `ChatCompletionRequest`."""

    tools: list[dict[str, Any]] | None
    tool_choice: str | dict[str, Any] | None
    parallel_tool_calls: bool | None
    skip_special_tokens: bool

    @property
    def model_fields_set(self) -> set[str]: ...

    def obey_tools(self, schema: dict[str, Any]) -> None: ...


class ToolUse:
    """What the tools of one request mean
    (`vllm/entrypoints/serve/render/serving.py:185 OpenAIServingRender.render_chat`).

    Attributes:
        choice: `none`, `auto`, `required` or `named`.
        name: with `named`, the tool.

    Raises ApiError where the server has no parser and the request needs one, or for tools that are none.
    """

    def __init__(self, body: ToolFields, settings: ServerSettings) -> None:
        parser = settings.tool_call_parser
        self._parser = TOOL_PARSERS[parser] if settings.enable_auto_tool_choice and parser else None
        self._parallel = bool(body.parallel_tool_calls)
        choice = tool_choice_of(body)
        if choice is None:
            choice = "auto" if body.tools and self._parser else "none"
        self.choice = "named" if isinstance(choice, dict) else choice
        self.name = choice["function"]["name"] if isinstance(choice, dict) else ""
        if self.choice == "none":
            return
        if self._parser is None:
            raise bad_request(
                f"tool_choice={shorten_repr(choice)} needs a server that reads tool calls: start it with "
                "--enable-auto-tool-choice --tool-call-parser hermes. tool_choice='none' shows the tools to "
                "the chat template and leaves it at that",
                "tool_choice",
            )
        # A model may have the tags as special tokens, which the parser has to see.
        body.skip_special_tokens = False
        try:
            schema = get_json_schema_from_tools(choice, body.tools)
        except ValueError as error:
            raise bad_request(str(error), "tools") from error
        if schema is not None:
            body.obey_tools(schema)

    @property
    def active(self) -> bool:
        """Whether the text is looked through for calls."""
        return self.choice != "none"

    def message(self, text: str, finish_reason: str | None) -> tuple[dict[str, Any], str]:
        """Content and calls of a finished text, as keys of a message, and the reason to give for its end
        (`vllm/entrypoints/openai/engine/serving.py:455 OpenAIServing._parse_tool_calls_from_content`).

        As OpenAI's, upstream calls a tool by name no end by `tool_calls`. A list of calls that was cut off is
        no list: no call, and no content.
        """
        reason = finish_reason or "stop"
        if self.choice == "named":
            return _message("", [FunctionCall(self.name, text)], self._parallel), reason
        if self.choice == "required":
            reason = "tool_calls" if reason == "stop" else reason
            return _message("", _read_list(text), self._parallel), reason
        assert self._parser is not None
        found = self._parser().extract_tool_calls(text)
        if not found.tools_called:
            return _message(found.content, [], True), reason
        content = found.content if found.content and found.content.strip() else None
        return _message(content, found.tool_calls, self._parallel), "tool_calls"

    def streams(self, n: int) -> list[ToolStream]:
        """A reader for each choice of a stream."""
        return [ToolStream(self._source(), self._parallel) for _ in range(n if self.active else 0)]

    def _source(self) -> ToolParser | RequiredToolStream | NamedToolStream:
        if self.choice == "named":
            return NamedToolStream(self.name)
        if self.choice == "required":
            return RequiredToolStream()
        assert self._parser is not None
        return self._parser()


class ToolStream:
    """One choice's text as it comes
    (`vllm/parser/abstract_parser.py:659 DelegatingParser.parse_delta`)."""

    def __init__(
        self, source: ToolParser | RequiredToolStream | NamedToolStream, parallel: bool
    ) -> None:
        self._source = source
        self._parallel = parallel
        self._text = ""
        self._called = False

    def feed(self, text: str, finish_reason: str | None) -> tuple[DeltaMessage | None, str | None]:
        """The delta to send for the next characters, None for none, and the reason of the end."""
        before, self._text = self._text, self._text + text
        source = self._source
        delta: DeltaMessage | None
        if isinstance(source, ToolParser):
            delta = source.extract_tool_calls_streaming(self._text)
        else:
            delta = source.feed(before, text)
        self._called |= bool(delta and delta.get("tool_calls"))
        if finish_reason is not None:
            if isinstance(source, ToolParser) and source.prev_tool_call_arr:
                self._called = True
                delta = _with_remaining_arguments(source, delta)
            if self._called and not isinstance(source, NamedToolStream):
                finish_reason = "tool_calls"
            delta = delta or {}
        if delta and delta.get("tool_calls") and not self._parallel:
            delta["tool_calls"] = [call for call in delta["tool_calls"] if call["index"] == 0]
        return delta, finish_reason


def _with_remaining_arguments(
    parser: ToolParser, delta: DeltaMessage | None
) -> DeltaMessage | None:
    """At the end a delta with arguments is written anew, so that none are forgotten, as in
    `vllm/entrypoints/openai/chat_completion/serving.py:1572 OpenAIServingChat._create_remaining_args_delta`.
    """
    calls = (delta or {}).get("tool_calls")
    if not calls or calls[0]["function"].get("arguments") is None:
        return delta
    index = len(parser.prev_tool_call_arr) - 1
    expected = parser.prev_tool_call_arr[index].get("arguments", "{}")
    sent = parser.streamed_args_for_tool[index]
    if latest := len(calls[0]["function"]["arguments"]):
        sent = sent[:-latest]
    own: dict[str, Any] = next((call for call in calls if call["index"] == index), {})
    function = {
        "name": own.get("function", {}).get("name"),
        "arguments": expected.replace(sent, "", 1),
    }
    call = {"id": own.get("id"), "type": own.get("type"), "index": index, "function": function}
    return {"tool_calls": [call]}


def _read_list(text: str) -> list[FunctionCall]:
    """The calls of a finished list, none if it is not one."""
    try:
        calls = json.loads(text)
        if not isinstance(calls, list):
            return []
        return [_read_call(call) for call in calls]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _read_call(call: Any) -> FunctionCall:
    name, parameters = call["name"], call.get("parameters")
    if not isinstance(name, str) or not isinstance(parameters, dict | None):
        raise TypeError
    return FunctionCall(name, json.dumps(parameters, ensure_ascii=False))


def _message(content: str | None, calls: Sequence[FunctionCall], parallel: bool) -> dict[str, Any]:
    kept = calls if parallel else calls[:1]
    listed = [
        {
            "id": make_tool_call_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in kept
    ]
    return {"content": content, "tool_calls": listed}


# ---- the request ---------------------------------------------------------------------------------


def tool_choice_of(body: ToolFields) -> str | dict[str, Any] | None:
    """`tool_choice`; where it is left out, `auto` if there are tools."""
    if "tool_choice" in body.model_fields_set:
        return body.tool_choice
    return "auto" if body.tools else "none"


def check_tools(body: ToolFields) -> None:
    """Tools and choice, each by itself and together
    (`vllm/entrypoints/openai/chat_completion/protocol.py:760 ChatCompletionRequest.check_tool_usage`).

    Raises ApiError.
    """
    tools, choice = body.tools, tool_choice_of(body)
    if tools == []:
        raise bad_request("tools must hold at least one tool, or be left out", "tools")
    for place, tool in enumerate(tools or ()):
        _check_tool(f"tools[{place}]", tool)
    if choice is None or choice == "none":
        return
    if tools is None:
        raise bad_request(f"tool_choice={shorten_repr(choice)} needs tools", "tool_choice")
    if isinstance(choice, str):
        if choice not in _CHOICES:
            raise _bad_choice(choice, f"must be one of {', '.join(_CHOICES)}, or name a tool")
        return
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type", "function") != "function" or not isinstance(name, str) or not name:
        raise _bad_choice(
            choice, 'must have the form {"type": "function", "function": {"name": "..."}}'
        )
    if all(tool["function"]["name"] != name for tool in tools):
        names = [tool["function"]["name"] for tool in tools]
        raise _bad_choice(choice, f"names none of the tools {shorten_repr(names)}")


def _check_tool(where: str, tool: dict[str, Any]) -> None:
    if tool.get("type", "function") != "function":
        raise bad_request(
            f"{where}.type must be function, got {shorten_repr(tool['type'])}", "tools"
        )
    function = tool.get("function")
    if not isinstance(function, dict):
        raise bad_request(
            f"{where}.function must be an object, got {shorten_repr(function)}", "tools"
        )
    for name, kind, what in (
        ("name", str, "a string"),
        ("description", str | None, "a string"),
        ("parameters", dict | None, "an object, a JSON schema"),
    ):
        value = function.get(name)
        if not isinstance(value, kind):
            raise bad_request(
                f"{where}.function.{name} must be {what}, got {shorten_repr(value)}", "tools"
            )


def _bad_choice(choice: Any, rule: str) -> ApiError:
    return bad_request(f"tool_choice={shorten_repr(choice)} {rule}", "tool_choice")


def tools_for_template(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The tools as the chat template gets them: as upstream, with the keys that a request may leave out."""
    return None if tools is None else [_whole_tool(tool) for tool in tools]


def _whole_tool(tool: dict[str, Any]) -> dict[str, Any]:
    given = tool.get("function")
    if not isinstance(given, dict):  # not checked in /tokenize
        return tool
    function = {name: given.get(name) for name in ("name", "description", "parameters")}
    return {"type": "function", **tool, "function": {**function, **given}}
