"""The offline front door: `LLM(...).generate(prompts, params)`, called as vLLM's is.

Mirrors `vllm/entrypoints/llm.py:66 LLM` and `offline_utils.py`. Left out: pooling,
multi-modal inputs, sleep, weight transfer: `surface.json` has every name and the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.input_processor import PromptType
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import DEFAULT_PARTS, EngineParts
from mini_vllm.model_loader import find_model, load_default_sampling_params
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from mini_vllm.utils.surface import missing_attribute, reject_unsupported
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.entrypoints.beam_search import BeamSearchOutput
    from mini_vllm.lora.request import LoRARequest
    from mini_vllm.metrics.reader import Metric

Messages = Sequence[Mapping[str, Any]]
"""A conversation: messages with `role` and `content`."""


class LLM:
    """A model and an engine, for generating offline.

    Args:
        model: a checkpoint folder, a GGUF file, `smollm2` (a real model of 135 million weights, extra
            `smollm2`) or `org/name` on the Hugging Face hub (extra `hub`); default: the shipped tiny Llama.
        chat_template: Jinja, or a file with it, for `chat` in place of the checkpoint's.
        parts: the engine's parts, for instance a learner's own.
        **kwargs: the fields of `EngineArgs`, by vLLM's names. `disable_log_stats` is True unless
            given, as in vLLM.

    Source: `vllm/entrypoints/llm.py:66 LLM`.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        *,
        chat_template: str | Path | None = None,
        parts: EngineParts = DEFAULT_PARTS,
        **kwargs: Any,
    ) -> None:
        args = EngineArgs(model, **{"disable_log_stats": True, **kwargs})
        if (args.data_parallel_size or 1) != 1:
            # As `vllm/entrypoints/llm.py:298 in LLM.__init__`.
            raise ValueError(
                f"LLM does not take data_parallel_size {shorten_repr(args.data_parallel_size)}: several "
                "engines are for AsyncLLM and for mini-vllm serve"
            )
        self.llm_engine = LLMEngine.from_engine_args(args, parts=parts)
        self.chat_template = _read_template(chat_template)
        self.default_sampling_params = load_default_sampling_params(find_model(model))
        self.request_counter = itertools.count()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        return cls(**vars(engine_args))

    def get_tokenizer(self) -> Any:
        return self.llm_engine.tokenizer

    def get_world_size(self, include_dp: bool = True) -> int:
        """1: one process computes."""
        return 1

    def get_metrics(self) -> list[Metric]:
        """The engine's numbers. Raises ValueError unless `disable_log_stats=False` was given."""
        return self.llm_engine.get_metrics()

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached prefixes; False, and nothing done, while requests hold blocks.

        With `reset_running_requests` those compute everything again
        (`vllm/entrypoints/llm.py:799 LLM.reset_prefix_cache`).
        """
        return self.llm_engine.reset_prefix_cache(reset_running_requests, reset_connector)

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` uses where it is given none: the checkpoint's own, or plain defaults."""
        return SamplingParams(**self.default_sampling_params)

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Sequence[LoRARequest | None] | LoRARequest | None = None,
        priority: list[int] | None = None,
        **unused: Any,
    ) -> list[RequestOutput]:
        """Complete the prompts, batched as the scheduler sees fit; results in the prompts' order.

        Args:
            prompts: one prompt or many; each a string, a list of token ids, or a dict with
                `prompt` or `prompt_token_ids`.
            sampling_params: one for all, or one a prompt; None: the defaults (16 tokens).
            use_tqdm: show progress on stderr. A callable is used as tqdm is.
            lora_request: one adapter for all, or one a prompt, None for none; needs `enable_lora`.
            priority: one a prompt, for the `priority` policy.
            unused: vLLM's others (`tokenization_kwargs`, …), None each.

        Raises TypeError or ValueError if a prompt or parameter is not valid; then none of this
        call's prompts has been run.
        Source: `vllm/entrypoints/llm.py:422 LLM.generate`.
        """
        known = ("use_tqdm", "priority", "lora_request")
        reject_unsupported("generate", unused, "LLM.generate", known)
        added = self._add_requests(prompts, sampling_params, priority, lora_request)
        return self._run(added, use_tqdm)

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: None = None,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The `params.beam_width` best continuations of each prompt that a beam search finds, best first.

        Args:
            prompts: as in `generate`.
            concurrency_limit: prompts that are searched for at once; None: all.
            lora_request, use_tqdm: at values that ask for nothing; no progress is shown.

        Raises ValueError without a tokenizer, whose EOS ends a beam, or where the width asks for more
        logprobs than `max_logprobs`.
        Source: `vllm/entrypoints/generate/beam_search/offline.py:27 BeamSearchOfflineMixin.beam_search`.
        """
        from mini_vllm.entrypoints.beam_search import search_offline

        if lora_request is not None:
            raise ValueError(
                f"lora_request {shorten_repr(lora_request)} is not supported by LLM.beam_search: only None is"
            )
        return search_offline(
            self.llm_engine, self.generate, _as_prompt_list(prompts), params, concurrency_limit
        )

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Sequence[LoRARequest | None] | LoRARequest | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        **unused: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or many; each becomes a prompt by the chat template.

        Args:
            messages: a list of messages, or a list of such lists.
            sampling_params, use_tqdm, lora_request: as in `generate`.
            chat_template: Jinja, in place of the one given to `LLM` and of the checkpoint's.
            add_generation_prompt: end each prompt with what begins an assistant's turn.
            continue_final_message: leave the last message open; then the other must be False.
            tools: shown to the template.
            chat_template_kwargs: variables for the template.
            chat_template_content_format, unused: at values that ask for nothing.

        Raises what `generate` does, ValueError where there is no template or it refuses the
        messages, and ImportError without jinja2 (extra `serve`).
        Source: `vllm/entrypoints/llm.py:615 LLM.chat`.
        """
        unused["chat_template_content_format"] = chat_template_content_format
        reject_unsupported("generate", unused, "LLM.chat", ("chat_template", "tools"))
        given = (chat_template, add_generation_prompt, continue_final_message, tools)
        prompts = self._render_chats(messages, chat_template_kwargs, *given)
        return self._run(self._add_requests(prompts, sampling_params, None, lora_request), use_tqdm)

    def _render_chats(
        self,
        messages: Any,
        kwargs: dict[str, Any] | None,
        chat_template: str | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: list[dict[str, Any]] | None,
    ) -> list[PromptType]:
        tokenizer = self.get_tokenizer()
        given = {
            "chat_template": chat_template or self.chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
        }
        prompts: list[PromptType] = []
        for conversation in _as_conversations(messages):
            text = tokenizer.apply_chat_template(
                conversation, tokenize=False, **{**(kwargs or {}), **given}
            )
            ids = tokenizer.encode(text, add_special_tokens=False)  # the template has them
            prompts.append({"prompt": text, "prompt_token_ids": ids})
        return prompts

    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        lora_request: Sequence[LoRARequest | None] | LoRARequest | None = None,
        priority: list[int] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        **unused: Any,
    ) -> list[str]:
        """Queue prompts without running them, for `wait_for_completion`; their request ids.

        Source: `vllm/entrypoints/llm.py:487 LLM.enqueue`.
        """
        reject_unsupported("generate", unused, "LLM.enqueue", ("priority", "lora_request"))
        return self._add_requests(prompts, sampling_params, priority, lora_request)

    def enqueue_chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Sequence[LoRARequest | None] | LoRARequest | None = None,
        priority: list[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        **unused: Any,
    ) -> list[str]:
        """Queue conversations without running them, for `wait_for_completion`; their request ids.

        Arguments as in `chat`. Source: `vllm/entrypoints/llm.py:709 LLM.enqueue_chat`.
        """
        reject_unsupported("generate", unused, "LLM.enqueue_chat", ("chat_template", "tools"))
        given = (chat_template, add_generation_prompt, continue_final_message, tools)
        prompts = self._render_chats(messages, chat_template_kwargs, *given)
        return self._add_requests(prompts, sampling_params, priority, lora_request)

    def wait_for_completion(
        self, output_type: Any = None, *, use_tqdm: bool | Callable[..., Any] = True
    ) -> list[RequestOutput]:
        """Run all that is queued. `output_type` says nothing here: there is one.

        Source: `vllm/entrypoints/llm.py:547 LLM.wait_for_completion`.
        """
        return self._run_engine(self.llm_engine.get_num_unfinished_requests(), use_tqdm)

    def _add_requests(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: list[int] | None,
        lora_request: Sequence[LoRARequest | None] | LoRARequest | None,
    ) -> list[str]:
        """Queue every prompt, or none of them."""
        prompt_list = _as_prompt_list(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        params = _one_each(sampling_params, prompt_list)
        priorities = _one_each(0 if priority is None else priority, prompt_list, "priority")
        adapters = _one_each(lora_request, prompt_list, "lora_request")
        added: list[str] = []
        try:
            for prompt, param, rank, lora in zip(
                prompt_list, params, priorities, adapters, strict=True
            ):
                if isinstance(param, SamplingParams):
                    param = param.clone()
                    param.output_kind = RequestOutputKind.FINAL_ONLY
                request_id = str(next(self.request_counter))
                self.llm_engine.add_request(
                    request_id, prompt, param, priority=rank, lora_request=lora
                )
                added.append(request_id)
        except BaseException:
            self._abort(added)
            raise
        return added

    def _run(self, added: list[str], use_tqdm: bool | Callable[..., Any]) -> list[RequestOutput]:
        try:
            return self._run_engine(len(added), use_tqdm)
        except BaseException:
            self._abort(added)
            raise

    def _abort(self, request_ids: list[str]) -> None:
        """Nothing of a call that fails may turn up in the next one."""
        for request_id in request_ids:
            if self.llm_engine.output_processor.has_request(request_id):
                self.llm_engine.abort_request(request_id)

    def _run_engine(self, total: int, use_tqdm: bool | Callable[..., Any]) -> list[RequestOutput]:
        engine = self.llm_engine
        bar = make_progress_bar(use_tqdm, total)
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

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise missing_attribute("LLM", name)


def make_progress_bar(use_tqdm: bool | Callable[..., Any], total: int) -> Any:
    """A bar of `total` prompts, made as tqdm is; None where none is wanted."""
    if not use_tqdm:
        return None
    make = use_tqdm
    if not callable(make):
        from mini_vllm.entrypoints.progress_bar import ProgressBar

        make = ProgressBar
    return make(total=total, desc="Processed prompts")


def _read_template(template: str | Path | None) -> str | None:
    """Jinja as it is, or the text of the file that is named. Braces stand in no file's name."""
    if template is None or (isinstance(template, str) and "{" in template):
        return template
    return Path(template).read_text(encoding="utf-8")


def _as_conversations(messages: Any) -> list[Any]:
    """One conversation or many? A list of dicts is one."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise TypeError(
            f"messages must be a list of messages or of conversations, got {type(messages).__name__}"
        )
    return [messages] if messages and isinstance(messages[0], Mapping) else list(messages)


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
