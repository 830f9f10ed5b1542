"""Tools: from a request's `tools` and `tool_choice` to a rule, and from the model's text back to calls.

Mirrors `vllm/tool_parsers/`, with one of its formats, hermes. It imports nothing of the server: a delta is
the dict that goes to the client, with the keys that upstream sets.
"""

from mini_vllm.tool_parsers.abstract_tool_parser import (
    ExtractedToolCallInformation,
    FunctionCall,
    ToolParser,
)
from mini_vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

TOOL_PARSERS: dict[str, type[ToolParser]] = {"hermes": Hermes2ProToolParser}
"""By the name that `--tool-call-parser` takes."""

__all__ = ["TOOL_PARSERS", "ExtractedToolCallInformation", "FunctionCall", "ToolParser"]
