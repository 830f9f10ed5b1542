"""What a user hands in, checked and made into what the core is sent.

Mirrors `vllm/v1/engine/input_processor.py` (`process_inputs` 234, `_validate_prompt_len` 379) and the
prompt forms of `vllm/inputs`. Everything that can be wrong with a request is found here, before the
engine's state is touched: a refused request leaves the others unharmed.

Left out: prompt embeddings, multi-modal inputs, the random suffix of request ids.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.request import EngineCoreRequest
from mini_vllm.inputs import TextPrompt, TokensPrompt
from mini_vllm.sample.logitsprocs import (
    load_logitsprocs,
    validate_logits_processors_parameters,
)
from mini_vllm.sampling_params import SAMPLING_EPS, SamplingParams
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.utils.surface import refusal
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.lora.registry import LoRARegistry
    from mini_vllm.lora.request import LoadedLoRARequest, LoRARequest
    from mini_vllm.utils.structured_params import StructuredOutputsParams


class PromptDict(TypedDict, total=False):
    """A prompt with what belongs to it: `prompt` or `prompt_token_ids`, and a `cache_salt`."""

    prompt: str
    prompt_token_ids: list[int]
    cache_salt: str


PromptType = str | Sequence[int] | TextPrompt | TokensPrompt | PromptDict


@dataclass(slots=True)
class ProcessedPrompt:
    """A prompt ready for the model. `text` is None if token ids were given."""

    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None


class InputProcessor:
    """Tokenizes, validates, fills in defaults.

    Args:
        config: the engine's.
        vocab_size: the model's.
        tokenizer: None if only token ids will be given.
        eos_token_ids: the model's. EOS proper is the tokenizer's; any others are stop tokens.
        loras: reads adapters; None: requests may name none.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        vocab_size: int,
        tokenizer: Tokenizer | None,
        eos_token_ids: Sequence[int] = (),
        loras: LoRARegistry | None = None,
    ) -> None:
        self.config = config
        self.max_model_len = config.max_model_len
        self.vocab_size = vocab_size
        self.tokenizer = tokenizer
        self.eos_token_ids = list(eos_token_ids)
        self.loras = loras
        self.logitsprocs = load_logitsprocs(config.logits_processors)

    def process_inputs(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        arrival_time: float | None = None,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
    ) -> EngineCoreRequest:
        """Check everything about a request, tokenize it, fill in its defaults, read its adapter.

        `arrival_time` is in seconds; None: now. `priority` is ignored unless the scheduling policy is
        `priority`, as upstream. Raises TypeError or ValueError naming what is wrong.
        Source: `vllm/v1/engine/input_processor.py:234 InputProcessor.process_inputs`.
        """
        if not isinstance(request_id, str) or not request_id:
            raise TypeError(
                f"request_id must be a non-empty string, got {shorten_repr(request_id)}"
            )
        if arrival_time is None:
            arrival_time = time.time()
        _check_order(arrival_time, priority)
        processed = self.process_prompt(prompt)
        params = self.process_params(params, len(processed.token_ids))
        return EngineCoreRequest(
            request_id,
            processed.text,
            processed.token_ids,
            params,
            arrival_time,
            priority,
            processed.cache_salt,
            None if lora_request is None else self.load_lora(lora_request),
        )

    def load_lora(self, lora_request: LoRARequest) -> LoadedLoRARequest:
        """An adapter, read if it is not in memory. Raises TypeError or ValueError.
        Source: `vllm/v1/engine/input_processor.py:138 InputProcessor._validate_lora`."""
        if self.loras is None:
            raise ValueError(
                f"lora_request {shorten_repr(lora_request)} is given, and LoRA is not enabled: start the "
                "engine with enable_lora=True"
            )
        return self.loras.load(lora_request)

    def process_prompt(self, prompt: PromptType) -> ProcessedPrompt:
        """Read a prompt in any of its forms.

        Raises TypeError or ValueError: another form, an empty prompt, a token id outside the
        vocabulary, a prompt that leaves no room for one output token within `max_model_len`.
        """
        cache_salt: str | None = None
        text: str | None = None
        ids: object = None
        if isinstance(prompt, Mapping):
            given = {name for name, value in prompt.items() if value is not None}
            unknown = sorted(given - {"prompt", "prompt_token_ids", "cache_salt"})
            if unknown:
                raise ValueError(
                    refusal("prompt", unknown[0])
                    or f"prompt has the unknown key {unknown[0]!r}; known are 'prompt', "
                    "'prompt_token_ids' and 'cache_salt'"
                )
            cache_salt = prompt.get("cache_salt")
            if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
                raise ValueError(
                    f"cache_salt must be a non-empty string, got {shorten_repr(cache_salt)}"
                )
            _check_unicode("cache_salt", cache_salt or "")
            text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
            if ids is None and text is None:
                raise ValueError("prompt has neither 'prompt' nor 'prompt_token_ids'")
            if text is not None and not isinstance(text, str):
                raise TypeError(f"'prompt' must be a string, got {type(text).__name__}")
        elif isinstance(prompt, str):
            text = prompt
        elif isinstance(prompt, Sequence | np.ndarray):
            ids = prompt
        else:
            raise TypeError(
                "prompt must be a string, a list of token ids or a dict, got "
                f"{type(prompt).__name__}"
            )
        token_ids = self._tokenize(text) if ids is None else self._check_token_ids(ids)
        self._validate_prompt_len(len(token_ids))
        return ProcessedPrompt(text, token_ids, cache_salt)

    def _tokenize(self, text: str | None) -> list[int]:
        if self.tokenizer is None:
            raise ValueError("this engine has no tokenizer: give token ids, not text")
        if not text:
            raise ValueError("The decoder prompt cannot be empty, got ''")
        _check_unicode("prompt", text)
        # A tokenizer may know added tokens for which the model has no embedding.
        return self._check_token_ids(self.tokenizer.encode(text))

    def _check_token_ids(self, ids: object) -> list[int]:
        if isinstance(ids, np.ndarray):
            ids = ids.tolist()
        if not isinstance(ids, Sequence) or isinstance(ids, str | bytes | bytearray):
            raise TypeError(
                f"prompt_token_ids must be a list of integers, got {type(ids).__name__}"
            )
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
                raise TypeError(f"prompt token ids must be integers, got {shorten_repr(token_id)}")
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(
                    f"Token id {shorten_repr(token_id)} is out of vocabulary: ids go from 0 to "
                    f"{self.vocab_size - 1}"
                )
        return [int(token_id) for token_id in ids]

    def _validate_prompt_len(self, prompt_len: int) -> None:
        if prompt_len == 0:
            raise ValueError("The decoder prompt cannot be empty, got 0 tokens")
        if prompt_len > self.max_model_len:
            raise ValueError(
                f"The decoder prompt (length {prompt_len}) is longer than the maximum model "
                f"length of {self.max_model_len}"
            )
        if prompt_len == self.max_model_len:
            raise ValueError(
                f"The decoder prompt (length {prompt_len}) plus the number of requested output "
                f"tokens (at least 1) is longer than the maximum model length of "
                f"{self.max_model_len}"
            )

    def process_params(self, params: SamplingParams, prompt_len: int) -> SamplingParams:
        """A copy of `params` that is valid for this model, with its EOS and `max_tokens` set.

        `max_tokens=None` becomes all that `max_model_len` leaves. Raises TypeError if `params` is
        something else, ValueError if it refers to what the model does not have.
        """
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
        if params.stop and (self.tokenizer is None or not params.detokenize):
            raise ValueError(f"stop strings {params.stop!r} need a tokenizer and detokenize=True")
        params = params.clone()
        if params.bad_words:
            if self.tokenizer is None:
                raise ValueError(f"bad_words {shorten_repr(params.bad_words)} need a tokenizer")
            params.update_from_tokenizer(self.tokenizer)
        params.verify(self.vocab_size, self.config.max_logprobs)
        validate_logits_processors_parameters(self.logitsprocs, params)
        if params.structured_outputs is not None:
            self._check_rule(params.structured_outputs)
        if self.config.speculation is not None:
            _check_goes_with_drafts(params)
        if params.max_tokens is None:
            params.max_tokens = self.max_model_len - prompt_len
        if prompt_len + params.min_tokens > self.max_model_len:
            raise ValueError(
                f"min_tokens ({params.min_tokens}) after a prompt of {prompt_len} tokens is more "
                f"than the maximum model length of {self.max_model_len}: it could not end"
            )
        eos = self.tokenizer.eos_token_id if self.tokenizer is not None else None
        params.update_from_generation_config({"eos_token_id": self.eos_token_ids}, eos)
        return params

    def _check_rule(self, rule: StructuredOutputsParams) -> None:
        """Choose what compiles the rule, which it has checked. Raises ValueError naming rule and field, and
        ImportError where a library is missing that the engine is to use."""
        from mini_vllm.structured_output.manager import choose_backend

        if self.tokenizer is None:
            raise ValueError("structured_outputs needs a tokenizer, and this engine has none")
        settings = self.config.structured_outputs
        choose_backend(rule, settings.backend if settings is not None else "auto")


def _check_goes_with_drafts(params: SamplingParams) -> None:
    """Refuse what is not applied to the rows of drafts
    (`vllm/sampling_params.py:780 SamplingParams._validate_spec_decode`)."""
    if params.min_p > SAMPLING_EPS or params.logit_bias:
        name = "min_p" if params.min_p > SAMPLING_EPS else "logit_bias"
        raise ValueError(
            f"{name} ({shorten_repr(getattr(params, name))}) is not supported with speculative decoding, and "
            "neither is " + ("logit_bias" if name == "min_p" else "min_p")
        )


def _check_order(arrival_time: object, priority: object) -> None:
    """Refuse what could not be compared with other requests': the queue would fail, with all in it."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(f"priority must be an integer, got {shorten_repr(priority)}")
    if isinstance(arrival_time, bool) or not isinstance(arrival_time, int | float):
        raise TypeError(
            f"arrival_time must be a number of seconds, got {shorten_repr(arrival_time)}"
        )
    if not math.isfinite(arrival_time):
        raise ValueError(f"arrival_time must be finite, got {shorten_repr(arrival_time)}")


def _check_unicode(name: str, text: str) -> None:
    """Refuse half a surrogate pair: it has no bytes that could be tokenized, hashed or sent."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} is not valid Unicode text: {text[error.start]!a} at position "
            f"{error.start} is half of a surrogate pair"
        ) from error
