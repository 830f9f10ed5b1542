"""The offline front door: `LLM(...).generate(prompts, params)`, called as vLLM's is.

Mirrors `vllm/entrypoints/llm.py:66 LLM` and `offline_utils.py`. Left out: chat,
pooling, beam search, LoRA, multi-modal inputs. Arguments of vLLM's that only choose hardware
(`tensor_parallel_size=1`, `dtype="float32"`, `enforce_eager`, …) are accepted where they ask for what
the miniature does anyway, and refused where they ask for something else.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from mini_vllm.checkpoint import load_default_sampling_params
from mini_vllm.config import EngineConfig
from mini_vllm.engine import DEFAULT_MODEL, DEFAULT_PARTS, EngineParts, LLMEngine
from mini_vllm.input_processor import PromptType
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

# vLLM's arguments that change nothing here, with the values that say so.
_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "dtype": ("auto", "float32", "float"),
    "enforce_eager": (True, False),
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "quantization": (None,),
    "trust_remote_code": (False,),
    "disable_log_stats": (True, False),
    "async_scheduling": (None, False),
}
_RENAMED = {"num_gpu_blocks_override": "num_gpu_blocks"}


def engine_config(**kwargs: Any) -> EngineConfig:
    """`EngineConfig` from the keyword arguments of vLLM's `LLM`.

    Raises TypeError for a name that neither knows, ValueError for a value we cannot serve.
    """
    known = {field.name for field in fields(EngineConfig)}
    settings: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in _NO_EFFECT:
            if value not in _NO_EFFECT[name]:
                allowed = " or ".join(map(repr, _NO_EFFECT[name]))
                raise ValueError(f"{name}={value!r} is not supported here: use {allowed}")
        elif name == "gpu_memory_utilization":
            continue  # the KV cache's size is given in bytes or blocks here
        elif value is None:
            continue  # vLLM's way to ask for the default
        elif _RENAMED.get(name, name) in known:
            settings[_RENAMED.get(name, name)] = value
        else:
            raise TypeError(f"unknown argument {name!r}; known are {', '.join(sorted(known))}")
    return EngineConfig(**settings)


class LLM:
    """A model and an engine, for generating offline.

    Args:
        model: a checkpoint folder; default: the shipped tiny Llama.
        parts: the engine's parts, for instance a learner's own.
        **kwargs: the fields of `EngineConfig`, by vLLM's names.

    Source: `vllm/entrypoints/llm.py:66 LLM`.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        *,
        parts: EngineParts = DEFAULT_PARTS,
        **kwargs: Any,
    ) -> None:
        self.llm_engine = LLMEngine(model, engine_config(**kwargs), parts=parts)
        self.default_sampling_params = load_default_sampling_params(model)
        self.request_counter = itertools.count()

    def get_tokenizer(self) -> Any:
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` uses where it is given none: the checkpoint's own, or plain defaults."""
        return SamplingParams(**self.default_sampling_params)

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: list[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete the prompts, batched as the scheduler sees fit; results in the prompts' order.

        Args:
            prompts: one prompt or many; each a string, a list of token ids, or a dict with
                `prompt` or `prompt_token_ids`.
            sampling_params: one for all, or one a prompt; None: the defaults (16 tokens).
            use_tqdm: show progress on stderr. A callable is used as tqdm is.
            priority: one a prompt, for the `priority` policy.

        Raises TypeError or ValueError if a prompt or parameter is not valid; then none of this
        call's prompts has been run.
        Source: `vllm/entrypoints/llm.py:422 LLM.generate`.
        """
        prompt_list = _as_prompt_list(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        params = _one_each(sampling_params, prompt_list)
        priorities = _one_each(0 if priority is None else priority, prompt_list, "priority")

        engine = self.llm_engine
        added: list[str] = []
        try:
            for prompt, param, rank in zip(prompt_list, params, priorities, strict=True):
                if isinstance(param, SamplingParams):
                    param = param.clone()
                    param.output_kind = RequestOutputKind.FINAL_ONLY
                request_id = str(next(self.request_counter))
                engine.add_request(request_id, prompt, param, priority=rank)
                added.append(request_id)
            return self._run_engine(len(added), use_tqdm)
        except BaseException:  # nothing of a call that fails may turn up in the next one
            for request_id in added:
                if engine.output_processor.has_request(request_id):
                    engine.abort_request(request_id)
            raise

    def _run_engine(self, total: int, use_tqdm: bool | Callable[..., Any]) -> list[RequestOutput]:
        engine = self.llm_engine
        bar = None
        if use_tqdm:
            make = use_tqdm if callable(use_tqdm) else _ProgressBar
            bar = make(total=total, desc="Processed prompts")
        outputs: list[RequestOutput] = []
        try:
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.finished:
                        outputs.append(output)
                        if bar is not None:
                            bar.update(1)
        finally:
            if bar is not None:
                bar.close()
        return sorted(outputs, key=lambda output: int(output.request_id))


def _as_prompt_list(prompts: Any) -> list[Any]:
    """One prompt or many? A list of integers is one prompt of token ids."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise TypeError(
            "prompts must be a string, token ids, a dict, or a list of these, got "
            f"{type(prompts).__name__}"
        )
    if prompts and isinstance(prompts[0], int):
        return [prompts]
    return list(prompts)


def _one_each(value: Any, prompts: list[Any], name: str = "sampling_params") -> list[Any]:
    if not isinstance(value, Sequence):
        return [value] * len(prompts)
    if len(value) != len(prompts):
        raise ValueError(
            f"the lengths of prompts ({len(prompts)}) and {name} ({len(value)}) must be the same"
        )
    return list(value)


class _ProgressBar:
    """As much of tqdm as `generate` needs; says nothing where stderr is not a terminal."""

    def __init__(self, total: int, desc: str) -> None:
        self.total, self.desc, self.n = total, desc, 0
        self._start = time.perf_counter()
        self._shown = sys.stderr.isatty()

    def update(self, count: int) -> None:
        self.n += count
        if self._shown:
            rate = self.n / max(time.perf_counter() - self._start, 1e-9)
            filled = 24 * self.n // max(self.total, 1)
            sys.stderr.write(
                f"\r{self.desc}: {'#' * filled:<24} {self.n}/{self.total} {rate:.1f} prompts/s "
            )
            sys.stderr.flush()

    def close(self) -> None:
        if self._shown:
            sys.stderr.write("\n")
