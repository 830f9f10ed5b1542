"""`EngineArgs`: an engine's settings as vLLM's scripts and command lines give them.

Mirrors the part of `vllm/engine/arg_utils.py:412 EngineArgs` that the miniature acts on. Arguments of
vLLM's beyond it pass where they ask for what happens here anyway, and are refused where they ask for
more (`surface.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.utils.surface import reject_unsupported
from mini_vllm.utils.untrusted import parse_json, shorten_repr

_RENAMED = {"num_gpu_blocks_override": "num_gpu_blocks"}


def json_object(text: str) -> dict[str, Any]:
    """A flag's value that is a JSON object."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {shorten_repr(text)}")
    return value


def add_structured_outputs_flags(parser: Any) -> None:
    """`--structured-outputs-config` as JSON, and a flag for each of its fields, as upstream's parser reads
    them (`vllm/utils/argparse_utils.py:113 FlexibleArgumentParser`)."""
    flag, dest = "--structured-outputs-config", "structured_outputs_config"
    parser.add_argument(
        flag, type=json_object, metavar="JSON", action=_Merge,
        help="how the rules of requests are compiled: the keys of the three flags below",
    )  # fmt: skip
    parser.add_argument(
        f"{flag}.backend", dest=dest, action=_Merge, metavar="NAME",
        help="auto, native, xgrammar or guidance (the last two with the extra grammar)",
    )  # fmt: skip
    for name, what in (
        ("disable_any_whitespace", "no blanks between the parts of JSON"),
        ("disable_additional_properties", "an object has no properties but those of its schema"),
    ):
        parser.add_argument(
            f"{flag}.{name}", dest=dest, type=_read_flag, action=_Merge, metavar="BOOL",
            help=f"true or false: {what}",
        )  # fmt: skip


class _Merge(argparse.Action):
    """Puts a field, or all that a JSON object has, beside what is there."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        _, _, name = str(option_string).partition(".")
        given = {name: values} if name else values
        before = getattr(namespace, self.dest, None) or {}
        setattr(namespace, self.dest, {**before, **given})


def _read_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got {shorten_repr(text)}")
    return text.lower() == "true"


@dataclass(init=False)
class EngineArgs:
    """Settings of an engine, with vLLM's names; None leaves one to the default.

    Attributes:
        model: a checkpoint folder; default: the shipped tiny Llama.
        num_gpu_blocks_override: `EngineConfig.num_gpu_blocks`, by which name it is taken too.
        spec_method, spec_model, spec_tokens: short for three keys of `speculative_config`.
        enforce_eager: no graphs, whatever `cudagraph_mode` says
            (`vllm/config/vllm.py:1032 in VllmConfig.__post_init__`).
        disable_log_stats: count nothing: no `RequestOutput.metrics`, no `get_metrics`.

    The others are fields of `EngineConfig`. Raises ValueError for an argument of vLLM's that asks for
    what the miniature has not, TypeError for one that vLLM has not either.
    """

    model: str | Path = DEFAULT_MODEL
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    scheduling_policy: str | None = None
    scheduler_reserve_full_isl: bool | None = None
    async_scheduling: bool | None = None
    rules: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None
    distributed_executor_backend: str | None = None
    attention: str | None = None
    cudagraph_mode: str | None = None
    cudagraph_capture_sizes: list[int] | None = None
    speculative_config: dict[str, Any] | None = None
    spec_method: str | None = None
    spec_model: str | None = None
    spec_tokens: int | None = None
    enforce_eager: bool = False
    stream_interval: int | None = None
    enable_lora: bool | None = None
    max_loras: int | None = None
    max_cpu_loras: int | None = None
    max_lora_rank: int | None = None
    structured_outputs_config: Any = None
    logprobs_mode: str | None = None
    logits_processors: list[Any] | None = None
    max_logprobs: int | None = None
    seed: int | None = None
    disable_log_stats: bool = False

    def __init__(self, model: str | Path = DEFAULT_MODEL, **kwargs: Any) -> None:
        self.model = model
        if kwargs.get("tokenizer") == model:
            del kwargs["tokenizer"]
        ours = {new: old for old, new in _RENAMED.items()}
        known = {field.name: field for field in fields(self)}
        for name, field in known.items():
            if name != "model":
                setattr(self, name, field.default)
        others = {}
        for name, value in kwargs.items():
            if ours.get(name, name) in known:
                setattr(self, ours.get(name, name), value)
            else:
                others[name] = value
        reject_unsupported("arguments", others, type(self).__name__, known)

    def create_engine_config(self) -> EngineConfig:
        """The engine's settings. Raises ValueError naming the field, its value and the rule."""
        known = {field.name for field in fields(EngineConfig)}
        settings = {_RENAMED.get(n, n): v for n, v in dataclasses.asdict(self).items()}
        if not isinstance(self.enforce_eager, bool):
            raise ValueError(
                f"enforce_eager must be True or False, got {shorten_repr(self.enforce_eager)}"
            )
        for name in ("speculative_config", "structured_outputs_config"):
            settings[name] = getattr(self, name)
        shorthands = (self.spec_method, self.spec_model, self.spec_tokens)
        if shorthands != (None, None, None):
            from mini_vllm.config.speculative import merge_shorthands

            merged = merge_shorthands(self.speculative_config, *shorthands)
            settings["speculative_config"] = merged
        if self.enforce_eager:
            settings["cudagraph_mode"] = "NONE"
        budget = self.max_num_batched_tokens
        if self.max_num_seqs is None and isinstance(budget, int):
            # A small budget lowers the default (`vllm/engine/arg_utils.py:2558`).
            settings["max_num_seqs"] = min(EngineConfig.max_num_seqs, max(budget, 1))
        return EngineConfig(**{n: v for n, v in settings.items() if n in known and v is not None})

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Give a parser one flag a setting, by vLLM's names. Returns the parser."""
        for field in fields(EngineArgs):
            flag = "--" + field.name.replace("_", "-")
            if field.name == "speculative_config":
                parser.add_argument(flag, "-sc", type=json_object, default=field.default)
            elif field.name == "structured_outputs_config":
                add_structured_outputs_flags(parser)
            elif "bool" in str(field.type):
                action = argparse.BooleanOptionalAction
                parser.add_argument(flag, action=action, default=field.default)
            else:
                kind = int if "int" in str(field.type) else str
                nargs = "+" if "list" in str(field.type) else None
                parser.add_argument(flag, type=kind, nargs=nargs, default=field.default)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """The settings that a parser with these flags has read; other attributes are left alone."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: getattr(args, name) for name in names if hasattr(args, name)})


class AsyncEngineArgs(EngineArgs):
    """`EngineArgs` for `AsyncLLM` (`vllm/engine/arg_utils.py:2568 AsyncEngineArgs`)."""


def engine_config(**kwargs: Any) -> EngineConfig:
    """`EngineConfig` from the keyword arguments of vLLM's `LLM`; see `EngineArgs`."""
    return EngineArgs(**kwargs).create_engine_config()
