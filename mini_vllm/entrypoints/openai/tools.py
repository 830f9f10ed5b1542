"""A chat request's `tools` and `tool_choice`: whether they are any, and what the chat template gets of them.

What becomes of them is in `tool_calls.py`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.entrypoints.openai.errors import ApiError, bad_request
from mini_vllm.utils.untrusted import shorten_repr

_CHOICES = ("none", "auto", "required")


def check_tools(tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None) -> None:
    """Tools and choice, each by itself and together
    (`vllm/entrypoints/openai/chat_completion/protocol.py:760 ChatCompletionRequest.check_tool_usage`).

    Raises ApiError.
    """
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
