"""`POST /v1/chat/completions`.

Mirrors `vllm/entrypoints/openai/chat_completion/serving.py:85 OpenAIServingChat`. Left out: reasoning, and
the formats of single models. Tool calls are in `tools.py`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.engine.input_processor import PromptDict
from mini_vllm.entrypoints.beam_search import one_token_params
from mini_vllm.entrypoints.openai.beams import answer, beam_search_params
from mini_vllm.entrypoints.openai.chat import ChatTemplate, conversation_message
from mini_vllm.entrypoints.openai.errors import bad_request, name_fields
from mini_vllm.entrypoints.openai.logprobs import LogprobFormatter, prompt_logprobs
from mini_vllm.entrypoints.openai.prompts import sampling_params
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.rules import rule_of
from mini_vllm.entrypoints.openai.serving import (
    SYSTEM_FINGERPRINT,
    EngineInput,
    Serving,
    now,
    usage_options,
)
from mini_vllm.entrypoints.openai.stream import DONE, Channel, EngineResponse, quote, sse
from mini_vllm.entrypoints.openai.tools import ToolUse
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.tool_parsers.abstract_tool_parser import DeltaMessage

NO_TEMPLATE = (
    "this model has no chat template, so messages cannot be made into a prompt: use "
    "/v1/completions, or start the server with --chat-template FILE"
)


class ChatCompletion:
    """One request to `/v1/chat/completions`.

    Raises ApiError where the request is not valid; nothing runs then.
    """

    def __init__(
        self,
        serving: Serving,
        template: ChatTemplate | None,
        body: ChatCompletionRequest,
        header_id: str | None,
    ) -> None:
        serving.check(body)
        serving.check_sequences(1, body.n)
        if template is None:
            raise bad_request(NO_TEMPLATE, "messages")
        self.serving = serving
        self.body = body
        self.id = serving.external_id("chatcmpl", header_id, body)
        self.created = now()
        self.n = body.n or 1
        self.lora_request = serving.models.find_lora(body.model)
        self.model_name = serving.model_name(self.lora_request)
        self.tools = ToolUse(body, serving.settings)
        self.rule = rule_of(body)
        last = body.messages[-1]
        self.role = "assistant" if body.add_generation_prompt else last.role
        self.echoed = ""
        if body.echo and last.role == self.role:
            self.echoed = conversation_message(last, len(body.messages) - 1)["content"]
        self.formatter = LogprobFormatter(serving.tokenizer, bool(body.return_tokens_as_token_ids))
        self.top_logprobs = body.top_logprobs if body.logprobs else None

        limit = body.max_completion_tokens
        max_tokens = limit if limit is not None else body.max_tokens
        # The template writes special tokens out, so the tokenizer is not to add its own.
        prompt = serving.reader.to_engine_prompt(
            template.render(body), body, max_tokens, body.add_special_tokens
        )
        try:
            self.entry = self._entry(prompt, max_tokens)
        except (TypeError, ValueError) as error:
            raise name_fields(error, body.field_of) from error
        self.is_big = serving.check_output_values(
            [self.entry], bool(body.return_token_ids), body.field_of
        )

    def _entry(self, prompt: PromptDict, max_tokens: int | None) -> EngineInput:
        body, serving = self.body, self.serving
        wanted = body.prompt_logprobs
        room = serving.max_model_len - len(prompt["prompt_token_ids"])
        request_id = serving.engine_id(self.id)
        if body.use_beam_search:
            beams = beam_search_params(body, serving, max_tokens, room)
            lora = self.lora_request
            return EngineInput(prompt, one_token_params(beams), request_id, 0, beams, lora)
        params = sampling_params(
            body,
            serving.defaults,
            max_tokens=max_tokens,
            room=room,
            logprobs=self.top_logprobs,
            prompt_logprobs=body.top_logprobs if wanted is None and body.echo else wanted,
            rule=self.rule,
        )
        return EngineInput(
            prompt, params, request_id, body.priority, lora_request=self.lora_request
        )

    def prepare(self) -> ChatCompletion:
        """See `Completion.prepare`."""
        self.serving.prepare([self.entry], self.body)
        return self

    def response(self) -> EngineResponse:
        """Run it."""
        work = self._stream if self.body.stream else self._full
        return self.serving.response(work, self.body.field_of)

    # -- all at once ------------------------------------------------------------------------------

    async def _full(self, channel: Channel) -> None:
        final = await answer(self.serving, self.entry)
        await channel.json_list(
            lambda: self._content(final),
            "choices",
            map(self._choice, final.outputs),
            self.is_big,
        )

    def _content(self, final: RequestOutput) -> dict[str, Any]:
        body = self.body
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model_name,
            "choices": [],
            "service_tier": None,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "usage": self.serving.usage(
                len(final.prompt_token_ids),
                sum(len(output.token_ids) for output in final.outputs),
                final.num_cached_tokens,
            ),
            "prompt_logprobs": prompt_logprobs(final.prompt_logprobs),
            "prompt_token_ids": final.prompt_token_ids if body.return_token_ids else None,
            "prompt_text": self.entry.prompt.get("prompt") if body.return_prompt_text else None,
            "kv_transfer_params": None,
        }

    def _choice(self, output: CompletionOutput) -> dict[str, Any]:
        said: dict[str, Any] = {"content": output.text, "tool_calls": []}
        finish_reason = output.finish_reason or "stop"
        if self.tools.active:
            said, finish_reason = self.tools.message(output.text, output.finish_reason)
        if self.echoed:
            said["content"] = self.echoed + (said["content"] or "")
        return {
            "index": output.index,
            "message": {
                "role": self.role,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
                **said,
            },
            "logprobs": self._logprobs(output),
            "finish_reason": finish_reason,
            "stop_reason": output.stop_reason,
            "token_ids": output.token_ids if self.body.return_token_ids else None,
            "routed_experts": None,
        }

    def _logprobs(self, output: CompletionOutput) -> dict[str, Any] | None:
        if self.top_logprobs is None:
            return None
        return self.formatter.chat(output.token_ids, output.logprobs or [], self.top_logprobs)

    # -- as it comes ------------------------------------------------------------------------------

    async def _stream(self, channel: Channel) -> None:
        body, serving = self.body, self.serving
        include_usage, continuous = usage_options(body)
        prompt_tokens = len(self.entry.prompt["prompt_token_ids"])
        counts = [0] * self.n
        head = (
            f'data: {{"id":{quote(self.id)},"object":"chat.completion.chunk",'
            f'"created":{self.created},"model":{quote(self.model_name)},"choices":[{{"index":'
        )
        middle = ',"delta":{"content":'
        tail = '},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        only_text = self.top_logprobs is None and not (body.return_token_ids or continuous)
        tools = self.tools.streams(self.n)
        only_text &= not tools
        first: RequestOutput | None = None
        async with serving.generate(self.entry) as (outputs, tracked):
            async for result in outputs:
                events = ""
                if first is None:
                    first = result
                    events = self._opening(result, continuous).decode()
                for output in result.outputs:
                    index = output.index
                    counts[index] += len(output.token_ids)
                    if only_text and output.finish_reason is None:
                        events += f"{head}{index}{middle}{quote(output.text)}{tail}"
                        continue
                    tracked.finished(output)
                    delta: DeltaMessage | None = {"content": output.text}
                    finish_reason = output.finish_reason
                    if tools:
                        delta, finish_reason = tools[index].feed(output.text, finish_reason)
                        if delta is None and not body.return_token_ids:
                            continue
                    choice = {
                        "index": index,
                        "delta": delta or {},
                        "logprobs": self._logprobs(output),
                        "finish_reason": finish_reason,
                    }
                    if output.finish_reason is not None:
                        choice["stop_reason"] = output.stop_reason
                    choice["token_ids"] = output.token_ids if body.return_token_ids else None
                    chunk = self._chunk([choice])
                    if output.finish_reason is not None and not include_usage:
                        chunk["system_fingerprint"] = SYSTEM_FINGERPRINT
                    if continuous:
                        chunk["usage"] = _plain_usage(prompt_tokens, counts[index])
                    events += sse(chunk).decode()
                await channel.events(events.encode())
        end = DONE
        if include_usage:
            cached = first.num_cached_tokens if first is not None else None
            usage = serving.usage(prompt_tokens, sum(counts), cached)
            if usage["prompt_tokens_details"] is None:
                del usage["prompt_tokens_details"]
            chunk = self._chunk([], system_fingerprint=SYSTEM_FINGERPRINT, usage=usage)
            end = sse(chunk) + DONE
        await channel.events(end, last=True)

    def _opening(self, result: RequestOutput, continuous: bool) -> bytes:
        """The first events of each choice: its role, and the text it echoes."""
        events = b""
        usage = {}
        if continuous:
            usage = {"usage": _plain_usage(len(result.prompt_token_ids), 0)}
        for index in range(self.n):
            delta = {"role": self.role, "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            chunk = self._chunk([choice], **usage)
            body = self.body
            chunk["prompt_token_ids"] = result.prompt_token_ids if body.return_token_ids else None
            prompt = self.entry.prompt.get("prompt")
            chunk["prompt_text"] = prompt if body.return_prompt_text else None
            events += sse(chunk)
        if self.echoed:
            for index in range(self.n):
                delta = {"content": self.echoed}
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                events += sse(self._chunk([choice], **usage))
        return events

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model_name,
            "choices": choices,
            **more,
        }


def _plain_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
