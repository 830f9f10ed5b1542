"""mini_vllm: vLLM's V1 engine, small enough to hold in your head, on numpy.

    from mini_vllm import LLM, SamplingParams

    llm = LLM()
    for output in llm.generate(["The scheduler"], SamplingParams(max_tokens=64)):
        print(output.outputs[0].text)

Names, call order and decisions are those of vLLM 0.22.1. Heavy modules load on first use.
"""

from __future__ import annotations

from mini_vllm.version import __version__, __version_tuple__

TYPE_CHECKING = False  # typing takes 20 ms, in which Ctrl-C would end in a traceback
if TYPE_CHECKING:
    from typing import Any

    from mini_vllm.config.engine import EngineConfig
    from mini_vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from mini_vllm.engine.async_llm import AsyncLLM
    from mini_vllm.engine.async_llm import AsyncLLM as AsyncLLMEngine
    from mini_vllm.engine.input_processor import PromptType
    from mini_vllm.engine.llm_engine import LLMEngine
    from mini_vllm.engine.parts import EngineParts
    from mini_vllm.entrypoints.llm import LLM
    from mini_vllm.inputs import TextPrompt, TokensPrompt
    from mini_vllm.outputs import CompletionOutput, RequestOutput
    from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
    from mini_vllm.utils.structured_params import StructuredOutputsParams

_EXPORTS = {
    "AsyncLLM": "engine.async_llm",
    "AsyncLLMEngine": "engine.async_llm",
    "AsyncEngineArgs": "engine.arg_utils",
    "EngineArgs": "engine.arg_utils",
    "LLM": "entrypoints.llm",
    "TextPrompt": "inputs",
    "TokensPrompt": "inputs",
    "PromptType": "engine.input_processor",
    "LLMEngine": "engine.llm_engine",
    "EngineParts": "engine.llm_engine",
    "EngineConfig": "config.engine",
    "SamplingParams": "sampling_params",
    "RequestOutputKind": "sampling_params",
    "StructuredOutputsParams": "utils.structured_params",
    "RequestOutput": "outputs",
    "CompletionOutput": "outputs",
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "CompletionOutput",
    "EngineArgs",
    "EngineConfig",
    "EngineParts",
    "LLMEngine",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "__version_tuple__",
]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        from mini_vllm.utils.surface import refusal

        missing = None if name.startswith("_") else refusal("exports", name)
        if missing is not None:  # an AttributeError's text is lost on the way to `from ... import`
            raise ImportError(missing)
        raise AttributeError(f"module 'mini_vllm' has no attribute {name!r}")
    import importlib

    found = importlib.import_module(f"mini_vllm.{module}")
    return getattr(found, "AsyncLLM" if name == "AsyncLLMEngine" else name)
