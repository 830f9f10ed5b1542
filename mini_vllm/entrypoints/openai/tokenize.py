"""`POST /tokenize` and `POST /detokenize`.

Mirrors `vllm/entrypoints/serve/tokenize/serving.py:30 OpenAIServingTokenization` and `protocol.py` beside
it. As there, a body with `prompt` is a text, one with `messages` a chat, and no length is too long for
the model: only the body's own limit holds. Left out: `/tokenizer_info`, templates in a request.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from mini_vllm.entrypoints.openai.chat import ChatTemplate
from mini_vllm.entrypoints.openai.chat_completions import NO_TEMPLATE
from mini_vllm.entrypoints.openai.errors import JsonBytes, bad_request
from mini_vllm.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    Messages,
    Objects,
    RequestBody,
)
from mini_vllm.entrypoints.openai.serving import Serving

_ID_MAX = 2**63 - 1


class TokenizeRequest(RequestBody):
    """The body of `POST /tokenize`: `prompt`, or `messages` and what belongs to a chat.

    `add_special_tokens` is true by default for a prompt and false for a chat, whose template writes
    them out.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Objects | None = None


class DetokenizeRequest(RequestBody):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, le=_ID_MAX)]], Field(fail_fast=True)]


def create_tokenize(
    serving: Serving, template: ChatTemplate | None, body: TokenizeRequest
) -> JsonBytes:
    """The answer to `/tokenize`, which may have millions of tokens. Raises ApiError."""
    serving.models.check(body.model)
    if body.prompt is not None:
        text, special = body.prompt, body.add_special_tokens is not False
    elif body.messages is not None:
        text, special = _chat_text(template, body), bool(body.add_special_tokens)
    else:
        raise bad_request("prompt: this field is required, or messages in its place", "prompt")
    ids = serving.tokenizer.encode(text, special)
    strings = serving.tokenizer.convert_ids_to_tokens(ids) if body.return_token_strs else None
    numbers = {"count": len(ids), "max_model_len": serving.max_model_len}
    return JsonBytes.of_lists(numbers, {"tokens": ids, "token_strs": strings})


def _chat_text(template: ChatTemplate | None, body: TokenizeRequest) -> str:
    if template is None:
        raise bad_request(NO_TEMPLATE, "messages")
    generate = body.add_generation_prompt
    if body.continue_final_message and generate:
        raise bad_request(
            "continue_final_message and add_generation_prompt cannot both be true",
            "continue_final_message",
        )
    chat = ChatCompletionRequest.model_construct(
        messages=body.messages,
        add_generation_prompt=not body.continue_final_message if generate is None else generate,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
        tools=body.tools,
    )
    chat.check_template()
    return template.render(chat)


def create_detokenize(serving: Serving, body: DetokenizeRequest) -> dict[str, str]:
    """The answer to `/detokenize`, special tokens written out; ids without a token give no text.

    Raises ApiError.
    """
    serving.models.check(body.model)
    return {"prompt": serving.tokenizer.decode(body.tokens, skip_special_tokens=False)}
