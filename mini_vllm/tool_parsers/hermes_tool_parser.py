"""Calls as Hermes 2 Pro and Qwen's models write them, each between two tags:

    <tool_call>
    {"name": "look_up", "arguments": {"part": "KX-1190"}}
    </tool_call>

Mirrors `vllm/tool_parsers/hermes_tool_parser.py:34 Hermes2ProToolParser`, its faults included: a call without
its last brace is streamed with or without it, as the text was cut, and a text's last characters are never
sent if they may begin a tag. Lab 12-06 writes a stream that has neither.
"""

from __future__ import annotations

import json
import re

from mini_vllm.tool_parsers.abstract_tool_parser import (
    DeltaMessage,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolParser,
    make_tool_call_id,
)
from mini_vllm.tool_parsers.utils import is_complete_json, partial_tag_overlap

START, END = "<tool_call>", "</tool_call>"
_CALLS = re.compile(rf"{START}(.*?)(?:{END}|\Z)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')


class Hermes2ProToolParser(ToolParser):
    """The parser that `--tool-call-parser hermes` names."""

    def __init__(self) -> None:
        super().__init__()
        self._sent_content_idx = 0

    def extract_tool_calls(self, model_output: str) -> ExtractedToolCallInformation:
        """The calls of a finished text
        (`vllm/tool_parsers/hermes_tool_parser.py:69 Hermes2ProToolParser.extract_tool_calls`).

        One call that cannot be read, and the whole text is content.
        """
        nothing = ExtractedToolCallInformation(tools_called=False, content=model_output)
        if START not in model_output:
            return nothing
        calls = []
        for body in _CALLS.findall(model_output):
            try:
                read = json.loads(body)
                name, arguments = read["name"], json.dumps(read["arguments"], ensure_ascii=False)
            except (ValueError, KeyError, TypeError, RecursionError):
                return nothing
            if not isinstance(name, str):
                return nothing
            calls.append(FunctionCall(name, arguments))
        content = model_output[: model_output.index(START)]
        return ExtractedToolCallInformation(True, calls, content or None)

    def extract_tool_calls_streaming(self, current_text: str) -> DeltaMessage | None:
        """What is new: content before the first call, names, pieces of arguments
        (`vllm/tool_parsers/hermes_tool_parser.py:203 Hermes2ProToolParser.extract_tool_calls_streaming`).

        As upstream it reads the text from its start again with every delta.
        """
        content = self._extract_content(current_text)
        deltas = []
        for i, (tc_json, is_complete) in enumerate(_tool_call_jsons(current_text)):
            if i == len(self.prev_tool_call_arr):
                self.prev_tool_call_arr.append({})
                self.streamed_args_for_tool.append("")
            if "name" not in self.prev_tool_call_arr[i]:
                name = _NAME.search(tc_json)
                if name is None:
                    break
                self.prev_tool_call_arr[i]["name"] = name[1]
                deltas.append(
                    {
                        "id": make_tool_call_id(),
                        "type": "function",
                        "index": i,
                        "function": {"name": name[1]},
                    }
                )
            if arguments := self._new_arguments(i, tc_json, is_complete):
                deltas.append({"index": i, "function": {"arguments": arguments}})
        return {"content": content, "tool_calls": deltas} if content or deltas else None

    def _extract_content(self, current_text: str) -> str | None:
        """Text that has not been sent, but for what may be the beginning of a tag."""
        if START in current_text:
            end = current_text.index(START)
        else:
            end = len(current_text) - partial_tag_overlap(current_text, START)
        if end <= self._sent_content_idx:
            return None
        content = current_text[self._sent_content_idx : end]
        self._sent_content_idx = end
        return content

    def _new_arguments(self, index: int, tc_json: str, is_complete: bool) -> str | None:
        found = _ARGUMENTS.search(tc_json)
        if found is None:
            return None
        arguments = tc_json[found.end() :]
        if is_complete and (arguments := arguments.rstrip()).endswith("}"):
            arguments = arguments[:-1].rstrip()  # the outer object's
        sent = len(self.streamed_args_for_tool[index])
        if len(arguments) <= sent:
            return None
        self.streamed_args_for_tool[index] = arguments
        self.prev_tool_call_arr[index]["arguments"] = arguments
        return arguments[sent:]


def _tool_call_jsons(text: str) -> list[tuple[str, bool]]:
    """For each call the text between its tags, and whether it is complete."""
    found = []
    for match in _CALLS.finditer(text):
        body = match[1]
        if match[0].endswith(END):
            found.append((body.strip(), True))
            continue
        tc_json = body[: len(body) - partial_tag_overlap(body, END)].strip()
        found.append((tc_json, is_complete_json(tc_json)))
    return found
