"""Streams of a text that a tool choice has put under a rule: it is JSON, and no format's parser is asked.

Mirrors `vllm/tool_parsers/streaming.py`.
"""

from __future__ import annotations

import re

from mini_vllm.tool_parsers.abstract_tool_parser import DeltaMessage, make_tool_call_id
from mini_vllm.tool_parsers.utils import partial_json_loads

_PARAMETERS = re.compile(r'.*"parameters":\s*(.*)', re.DOTALL)


def filter_delta_text(delta_text: str, previous_text: str) -> tuple[str, bool]:
    """A delta without what closes a call and separates it from the next, and whether a call ends in it
    (`vllm/tool_parsers/streaming.py:38 filter_delta_text`). It counts braces, in strings as well."""
    level = previous_text.count("{") - previous_text.count("}")
    kept, passed_zero = "", False
    for character in delta_text:
        if character in "{}":
            level += 1 if character == "{" else -1
            passed_zero = level == 0
        if level != 0:
            kept += character
        elif character == ",":
            break
    return kept, passed_zero


class NamedToolStream:
    """With a tool by name all of the text is its arguments
    (`vllm/tool_parsers/streaming.py:62 extract_named_tool_call_streaming`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.function_name_returned = False

    def feed(self, previous_text: str, delta_text: str) -> DeltaMessage:
        """The next piece, an empty one too; the first has the name."""
        if self.function_name_returned:
            return {"tool_calls": [{"index": 0, "function": {"arguments": delta_text}}]}
        self.function_name_returned = True
        function = {"name": self.name, "arguments": delta_text}
        return {"tool_calls": [_first(0, function)]}


class RequiredToolStream:
    """With `required` the text is a list of calls
    (`vllm/tool_parsers/streaming.py:103 extract_required_tool_call_streaming`)."""

    def __init__(self) -> None:
        self.function_name_returned = False

    def feed(self, previous_text: str, delta_text: str) -> DeltaMessage | None:
        """The next piece, None while there is none. A call's name comes with the beginning of its
        parameters."""
        current_text = previous_text + delta_text
        try:
            calls = partial_json_loads(current_text)
        except (ValueError, RecursionError):
            calls = None
        if not isinstance(calls, list) or not calls:
            self.function_name_returned = False
            return None
        _, finishes_previous_tool = filter_delta_text(delta_text, previous_text)
        call = calls[-1]
        if not isinstance(call, dict):  # only where no rule was obeyed
            return None
        if not finishes_previous_tool and ("name" not in call or "parameters" not in call):
            self.function_name_returned = False
            return None
        index = len(calls) - 1
        if not self.function_name_returned:
            found = _PARAMETERS.match(current_text)
            arguments, _ = filter_delta_text(found[1] if found else "", previous_text)
            if finishes_previous_tool and "parameters" not in call and index:
                call = calls[-2]
            if not isinstance(call.get("name"), str):
                return None
            self.function_name_returned = True
            return {"tool_calls": [_first(index, {"name": call["name"], "arguments": arguments})]}
        text, _ = filter_delta_text(delta_text, previous_text)
        if not text:
            return None
        return {"tool_calls": [{"index": index, "function": {"name": None, "arguments": text}}]}


def _first(index: int, function: dict[str, str]) -> dict[str, object]:
    return {"id": make_tool_call_id(), "type": "function", "index": index, "function": function}
