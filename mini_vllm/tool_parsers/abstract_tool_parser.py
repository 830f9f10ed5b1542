"""What a parser of tool calls is.

Mirrors `vllm/tool_parsers/abstract_tool_parser.py`. Left out: structural tags of a format's own, which
upstream has for two formats and sets only with `VLLM_ENFORCE_STRICT_TOOL_CALLING=1`; the plain `auto` sets no
rule there or here. A client may send a tag of its own.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

DeltaMessage = dict[str, Any]
"""A streamed piece: `content`, `tool_calls`
(`vllm/entrypoints/openai/engine/protocol.py:267 DeltaMessage`)."""


@dataclass(frozen=True)
class FunctionCall:
    """A call that has been read; `arguments` is JSON, as text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ExtractedToolCallInformation:
    """A finished text's calls; `content` is what the text says besides, None if nothing."""

    tools_called: bool
    tool_calls: list[FunctionCall] = field(default_factory=list)
    content: str | None = None


def make_tool_call_id() -> str:
    """A name for a call (`vllm/entrypoints/chat_utils.py:1946 make_tool_call_id`)."""
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


class ToolParser(ABC):
    """Reads one format. One object per stream
    (`vllm/tool_parsers/abstract_tool_parser.py:43 ToolParser`).

    Attributes:
        prev_tool_call_arr: what has been found of each call, `name` and `arguments`.
        streamed_args_for_tool: of each call the arguments as far as they were sent.
    """

    def __init__(self) -> None:
        self.prev_tool_call_arr: list[dict[str, str]] = []
        self.streamed_args_for_tool: list[str] = []

    @abstractmethod
    def extract_tool_calls(self, model_output: str) -> ExtractedToolCallInformation:
        """The calls of a finished text. Text that cannot be read is content."""

    @abstractmethod
    def extract_tool_calls_streaming(self, current_text: str) -> DeltaMessage | None:
        """What is new.

        Args:
            current_text: all that the model has written by now.

        Returns:
            None: nothing yet.
        """
