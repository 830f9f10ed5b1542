"""mini_vllm: vLLM's V1 engine, small enough to hold in your head, on numpy.

    from mini_vllm import LLM, SamplingParams

    llm = LLM()
    for output in llm.generate(["The scheduler"], SamplingParams(max_tokens=64)):
        print(output.outputs[0].text)

Names, call order and decisions are those of vLLM 0.22.1. Heavy modules load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mini_vllm.async_llm import AsyncLLM
    from mini_vllm.config import EngineConfig
    from mini_vllm.engine import EngineParts, LLMEngine
    from mini_vllm.llm import LLM
    from mini_vllm.outputs import CompletionOutput, RequestOutput
    from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

__version__ = "0.1.0"

_EXPORTS = {
    "AsyncLLM": "async_llm",
    "LLM": "llm",
    "LLMEngine": "engine",
    "EngineParts": "engine",
    "EngineConfig": "config",
    "SamplingParams": "sampling_params",
    "RequestOutputKind": "sampling_params",
    "RequestOutput": "outputs",
    "CompletionOutput": "outputs",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineConfig",
    "EngineParts",
    "LLMEngine",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'mini_vllm' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mini_vllm.{module}"), name)
