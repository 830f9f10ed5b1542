"""A request's messages made into one prompt: `mini_vllm.tokenizer.chat_template` behind HTTP.

What the template refuses is a bad request that names the field. Left out: templates that a request
brings along.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.entrypoints.openai.errors import bad_request
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest, ChatMessageParam
from mini_vllm.entrypoints.openai.tools import tools_for_template
from mini_vllm.tokenizer import chat_template
from mini_vllm.tokenizer.chat_template import RESERVED, ChatTemplateError


class ChatTemplate(chat_template.ChatTemplate):
    """A chat template that reads request bodies."""

    def render(self, body: ChatCompletionRequest) -> str:  # type: ignore[override]
        """The prompt's text. Raises ApiError, also for what the template itself refuses."""
        kwargs = body.chat_template_kwargs or {}
        extra = {name: value for name, value in kwargs.items() if name not in RESERVED}
        if body.reasoning_effort is not None:
            extra.setdefault("reasoning_effort", body.reasoning_effort)
        given = {
            "tools": tools_for_template(body.tools),
            "documents": body.documents,
            "add_generation_prompt": body.add_generation_prompt,
            "continue_final_message": body.continue_final_message,
        }
        try:
            return super().render(list(map(_as_dict, body.messages)), **{**extra, **given})
        except ChatTemplateError as error:
            raise bad_request(str(error), error.argument) from error


def conversation_message(message: ChatMessageParam, place: int) -> dict[str, Any]:
    """`mini_vllm.tokenizer.chat_template.conversation_message`. Raises ApiError."""
    try:
        return chat_template.conversation_message(_as_dict(message), place)
    except ChatTemplateError as error:
        raise bad_request(str(error), error.argument) from error


def _as_dict(message: ChatMessageParam) -> dict[str, Any]:
    return {**(message.model_extra or {}), "role": message.role, "content": message.content}
