"""What the installed vLLM offers, by name: arguments, methods, flags, fields, endpoints.

As a program (`python -m tests.engine.helpers.real_vllm.vllm_surface JOB ANSWER`, see
`course.parity.tokens_run.run_worker`).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import sys
import typing
import warnings
from pathlib import Path
from typing import Any


def _arguments() -> dict[str, Any]:
    """Every argument of `LLM` and `AsyncEngineArgs`: its default, where JSON can hold it."""
    from vllm import LLM
    from vllm.engine.arg_utils import AsyncEngineArgs

    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(AsyncEngineArgs):
        plain = isinstance(field.default, bool | int | float | str | None)
        defaults[field.name] = [field.default] if plain else []
    for name, parameter in inspect.signature(LLM.__init__).parameters.items():
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
            defaults.setdefault(name, [])
    return defaults


def _literals(kind: Any) -> list[str]:
    inner = typing.get_args(kind)
    return [name for one in inner for name in _literals(one)] if inner else [kind]


def _endpoints() -> list[str]:
    """`METHOD PATH` of every endpoint, whatever the model can do, in development mode."""
    from vllm.entrypoints.openai.api_server import build_app
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.tasks import PoolingTask
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    flags = ["--enable-tokenizer-info-endpoint", "--profiler-config.profiler", "torch"]
    flags += ["--profiler-config.torch_profiler_dir", "/tmp"]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    found = set()
    for task in _literals(PoolingTask):

        class Model:
            """As much of a model's configuration as the routers look at."""

            pooler_config = None

            def get_pooling_task(self, *_: Any, task: str = task) -> str:
                return task

            def __getattr__(self, name: str) -> None:
                return None

        tasks = ("generate", "transcription", "realtime", "render", task)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # two routers share a path
            paths = build_app(args, tasks, Model()).openapi()["paths"]
        found |= {f"{method.upper()} {path}" for path in paths for method in paths[path]}
    return sorted(found)


def main(_: str, answer: str) -> None:
    os.environ["VLLM_SERVER_DEV_MODE"] = os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    import vllm
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.llm_engine import LLMEngine

    def public(kind: type) -> list[str]:
        return [name for name in dir(kind) if not name.startswith("_")]

    def parameters(function: Any) -> list[str]:
        return [name for name in inspect.signature(function).parameters if name != "self"]

    actions = make_arg_parser(FlexibleArgumentParser())._actions
    from vllm.config import speculative

    keys = {}
    for field in dataclasses.fields(speculative.SpeculativeConfig):
        default = getattr(field.default, "default", field.default)
        keys[field.name] = [default] if isinstance(default, bool | int | float | str | None) else []
    found = {
        "version": vllm.__version__,
        "arguments": _arguments(),
        "speculative": keys,
        "methods": _literals(speculative.SpeculativeMethod),
        "flags": [name for action in actions for name in action.option_strings],
        "SamplingParams": [n for n in vllm.SamplingParams.__struct_fields__ if n[0] != "_"],
        "LLM": public(vllm.LLM),
        "LLMEngine": public(LLMEngine),
        "AsyncLLM": public(AsyncLLM),
        "generate": sorted(
            {name for f in (vllm.LLM.generate, vllm.LLM.chat) for name in parameters(f)}
            | {name for f in (AsyncLLM.generate, LLMEngine.add_request) for name in parameters(f)}
        ),
        "completion fields": list(CompletionRequest.model_fields),
        "chat fields": list(ChatCompletionRequest.model_fields),
        "endpoints": _endpoints(),
        "exports": [name for name in vllm.__all__ if not name.startswith("_")],
    }
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
