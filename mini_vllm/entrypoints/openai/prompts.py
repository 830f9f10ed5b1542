"""From a checked body to what the engine takes: token ids and `SamplingParams`.

Mirrors `vllm/renderers/params.py:129 TokenizeParams` (lengths, truncation),
`vllm/entrypoints/utils.py:175 get_max_tokens` and the two `to_sampling_params`. Lengths are checked
before text is tokenized where that can be told, and always before the engine sees the request.
"""

from __future__ import annotations

from typing import Any, TypeVar

from mini_vllm.engine.input_processor import PromptDict
from mini_vllm.entrypoints.openai.errors import bad_request
from mini_vllm.entrypoints.openai.protocol import SamplingFields
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.tokenizer import Tokenizer
from mini_vllm.utils.structured_params import StructuredOutputsParams
from mini_vllm.utils.untrusted import shorten_repr

TextOrIds = TypeVar("TextOrIds", str, list[int])


class PromptReader:
    """Makes engine prompts, and knows how long they may be.

    Args:
        tokenizer: the engine's.
        vocab_size: token ids in prompts are below it.
        max_model_len: most tokens in a request, prompt and output.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_model_len: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        # A text with more characters than this many a token cannot fit, whatever it says.
        self.max_chars_per_token = max(
            (len(tokenizer.decode([i], False)) for i in range(tokenizer.vocab_size)), default=1
        )

    def read_all(self, prompt: Any) -> list[str | list[int]]:
        """A completion's `prompt` as a list of prompts, each text or token ids.

        One prompt is a string or a list of integers; many are a list of either. What stands in the
        lists of ids is looked at later, when it is known that they are not too long. Raises ApiError.
        """
        if prompt is None or prompt in ("", []):
            raise bad_request(
                f"prompt must be given and not be empty, got {shorten_repr(prompt)}", "prompt"
            )
        if isinstance(prompt, str):
            return [prompt]
        if not isinstance(prompt, list):
            raise _no_prompt(prompt)
        if isinstance(prompt[0], int):
            return [prompt]
        prompts: list[str | list[int]] = []
        for place, one in enumerate(prompt):
            if not isinstance(one, str | list) or type(one) is not type(prompt[0]):
                raise _no_prompt(one)
            prompts.append(one)
            if not one:
                raise bad_request(f"prompt[{place}] must not be empty, got {one!r}", "prompt")
        return prompts

    def to_engine_prompt(
        self,
        prompt: str | list[int],
        body: SamplingFields,
        max_tokens: int | None,
        add_special_tokens: bool,
    ) -> PromptDict:
        """Tokenize, truncate as asked, check the length. Raises ApiError.

        Text that is too long whatever its tokens are is not tokenized: it is refused
        (`vllm/renderers/params.py:324 TokenizeParams._text_len_check`), or cut to twice what the
        tokens to be kept can hold. Of what the cut leaves, the half next to it is dropped, so tokens
        come out as they would have, but for a single word that is longer than that.
        """
        output = max_tokens or 0
        asked = body.field_of("max_tokens")
        if output > self.max_model_len:
            raise bad_request(
                f"{asked}={shorten_repr(output)} cannot be greater than max_model_len={self.max_model_len}. "
                "Please request fewer output tokens.",
                asked,
            )
        room = self.max_model_len - max(output, 0)
        keep = body.truncate_prompt_tokens
        if keep is not None and keep > room:
            raise bad_request(
                f"truncate_prompt_tokens={shorten_repr(keep)} cannot be greater than max_model_len - "
                f"{asked} = "
                f"{room}. Please request a smaller truncation size.",
                "truncate_prompt_tokens",
            )
        if keep == -1:
            keep = room
        text = ids = None
        if isinstance(prompt, list):
            ids = prompt
        else:
            text = prompt
            most = room * self.max_chars_per_token
            if keep is None and len(text) > most:
                got = f"{len(text)} characters (more than {most} characters, which is the upper bound "
                raise self._too_long(body, output, f"{got}for {room} input tokens)")
            shorter = text
            if keep is not None:
                shorter = _cut(text, 2 * keep * self.max_chars_per_token, body.truncation_side)
            ids = self.tokenizer.encode(shorter, add_special_tokens)
        if keep is not None:
            # The tokenizer's own cut, which no side asks for, is one in the text: <bos> stays.
            special = add_special_tokens and text is not None and body.truncation_side is None
            head = self.tokenizer.encode("") if special else []
            head = head if ids[: len(head)] == head and len(head) <= keep else []
            ids = head + _cut(ids[len(head) :], keep - len(head), body.truncation_side)
        if keep == 0:
            raise bad_request(
                "truncate_prompt_tokens=0: the prompt is empty, it has 0 tokens left",
                "truncate_prompt_tokens",
            )
        if not ids:
            raise bad_request("the prompt is empty: it has 0 tokens", body.field_of("prompt"))
        if len(ids) == room and not output:
            output = (
                1  # vLLM lets this pass, and then refuses a `max_tokens` of 0 that was never set
            )
        if len(ids) + output > self.max_model_len:
            got = f"{len(ids)} input tokens, for a total of {len(ids) + output} tokens"
            raise self._too_long(body, output, got)
        _check_token_ids(ids)
        engine_prompt = PromptDict(prompt_token_ids=ids)
        if text is not None:
            engine_prompt["prompt"] = text
        if body.cache_salt is not None:
            engine_prompt["cache_salt"] = body.cache_salt
        return engine_prompt

    def _too_long(self, body: SamplingFields, output: int, got: str) -> Exception:
        """In vLLM's words (`vllm/renderers/params.py:415 TokenizeParams._token_len_check`): clients know by
        the first sentence, and by nothing else, that a shorter prompt would do."""
        return bad_request(
            f"This model's maximum context length is {self.max_model_len} tokens. However, you requested "
            f"{output} output tokens and your prompt contains {got}. Please reduce the length of the "
            "input prompt or the number of requested output tokens.",
            body.field_of("prompt"),
        )


def _no_prompt(value: object) -> Exception:
    return bad_request(
        "prompt must be a string, a list of strings, a list of token ids or a list of such lists, "
        f"got {shorten_repr(value)}",
        "prompt",
    )


def count_prompts(prompt: Any) -> int:
    """How many prompts a completion's `prompt` holds, before anything in it is looked at."""
    several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return len(prompt) if several else 1


def _cut(whole: TextOrIds, keep: int, side: str | None) -> TextOrIds:
    """`keep` characters or tokens: the last ones, as generation's tokenizers are set, unless the
    side to be cut is `right`."""
    return whole[:keep] if side == "right" else whole[max(len(whole) - keep, 0) :]


def _check_token_ids(ids: list[Any]) -> None:
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise bad_request(
                "prompt must hold token ids, which are integers of at least 0, got "
                f"{shorten_repr(token_id)}",
                "prompt",
            )


def sampling_params(
    body: SamplingFields,
    defaults: dict[str, Any],
    *,
    max_tokens: int | None,
    room: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
    rule: StructuredOutputsParams | None,
) -> SamplingParams:
    """The engine's parameters for one prompt.

    Args:
        body: the request.
        defaults: the checkpoint's own, for what the request does not say.
        max_tokens: as asked for; None: the default, or all there is room for.
        room: tokens that the prompt leaves.
        logprobs, prompt_logprobs: as `SamplingParams` counts them.
        rule: what the output obeys.

    Raises TypeError or ValueError for a value that `SamplingParams` refuses, ApiError for a key of
    `logit_bias`.
    """
    wanted = max_tokens if max_tokens is not None else defaults.get("max_tokens")
    given: dict[str, Any] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
    }
    chosen = {k: v for k, v in defaults.items() if k in given}
    chosen |= {k: v for k, v in given.items() if v is not None}
    return SamplingParams(
        **chosen,
        n=1 if body.n is None else body.n,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        seed=body.seed,
        stop=body.stop,
        stop_token_ids=_distinct(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        max_tokens=room if wanted is None else min(wanted, room),
        min_tokens=body.min_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=body.skip_special_tokens,
        spaces_between_special_tokens=body.spaces_between_special_tokens,
        bad_words=getattr(body, "bad_words", None),
        repetition_detection=body.repetition_detection,
        include_stop_str_in_output=body.include_stop_str_in_output,
        output_kind=RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY,
        structured_outputs=rule,
        logit_bias=_biases(body.logit_bias),
        allowed_token_ids=_distinct(body.allowed_token_ids),
        extra_args=body.vllm_xargs or None,
    )


def _distinct(token_ids: list[int] | None) -> list[int] | None:
    return None if token_ids is None else list(dict.fromkeys(token_ids))


def _biases(biases: dict[str, float] | None) -> dict[int, float] | None:
    """Keys to ids, values into [-100, 100]
    (`vllm/sampling_params.py:325 SamplingParams.from_optional`)."""
    if biases is None:
        return None
    result = {}
    for key, bias in biases.items():
        # `int` also takes " 5", "1_0" and digits of other scripts: two keys for one token.
        digits = key.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal()) or len(key) > 20 or str(int(key)) != key:
            raise bad_request(
                "logit_bias: each key must be a token id in plain decimal digits, got "
                f"{shorten_repr(key)}",
                "logit_bias",
            )
        token_id = int(key)
        if bias != bias:  # NaN would pass through min and max
            raise bad_request(f"logit_bias[{token_id}] must be a number, got {bias}", "logit_bias")
        result[token_id] = min(100.0, max(-100.0, bias))
    return result
