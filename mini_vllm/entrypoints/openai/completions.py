"""`POST /v1/completions`.

Mirrors `vllm/entrypoints/openai/completion/serving.py:54 OpenAIServingCompletion`. Where a stream has
nothing but text to tell, its chunk is put together from a prepared text: the tokens of 64 streams
pass here, 64 every few milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mini_vllm.entrypoints.beam_search import one_token_params
from mini_vllm.entrypoints.openai.beams import answer, beam_search_params
from mini_vllm.entrypoints.openai.errors import name_fields
from mini_vllm.entrypoints.openai.logprobs import LogprobFormatter, prompt_logprobs
from mini_vllm.entrypoints.openai.prompts import count_prompts, sampling_params
from mini_vllm.entrypoints.openai.protocol import CompletionRequest
from mini_vllm.entrypoints.openai.rules import rule_of
from mini_vllm.entrypoints.openai.serving import (
    SYSTEM_FINGERPRINT,
    EngineInput,
    Serving,
    now,
    usage_options,
)
from mini_vllm.entrypoints.openai.stream import DONE, Channel, EngineResponse, quote, run_all, sse
from mini_vllm.outputs import CompletionOutput, RequestOutput


class Completion:
    """One request to `/v1/completions`.

    Raises ApiError where the request is not valid; nothing runs then.
    """

    def __init__(self, serving: Serving, body: CompletionRequest, header_id: str | None) -> None:
        serving.check(body)
        serving.check_sequences(count_prompts(body.prompt), body.n)
        prompts = serving.reader.read_all(body.prompt)
        self.serving = serving
        self.body = body
        self.id = serving.external_id("cmpl", header_id, body)
        self.created = now()
        self.n = body.n or 1
        self.lora_request = serving.models.find_lora(body.model)
        self.model_name = serving.model_name(self.lora_request)
        self.rule = rule_of(body)
        self.echo = bool(body.echo)
        self.echo_only = self.echo and body.max_tokens == 0
        self.formatter = LogprobFormatter(serving.tokenizer, bool(body.return_tokens_as_token_ids))
        try:
            self.entries = [self._entry(prompt) for prompt in prompts]
        except (TypeError, ValueError) as error:
            raise name_fields(error, body.field_of) from error
        with_prompt = self.echo or bool(body.return_token_ids)
        self.is_big = serving.check_output_values(self.entries, with_prompt, body.field_of)

    def _entry(self, prompt: str | list[int]) -> EngineInput:
        body, serving = self.body, self.serving
        max_tokens = 1 if self.echo_only else body.max_tokens
        engine_prompt = serving.reader.to_engine_prompt(
            prompt, body, max_tokens, body.add_special_tokens
        )
        wanted = body.prompt_logprobs
        room = serving.max_model_len - len(engine_prompt["prompt_token_ids"])
        request_id = serving.engine_id(self.id)
        if body.use_beam_search:
            beams = beam_search_params(body, serving, max_tokens, room)
            lora = self.lora_request
            return EngineInput(engine_prompt, one_token_params(beams), request_id, 0, beams, lora)
        params = sampling_params(
            body,
            serving.defaults,
            max_tokens=max_tokens,
            room=room,
            logprobs=body.logprobs,
            prompt_logprobs=body.logprobs if wanted is None and self.echo else wanted,
            rule=self.rule,
        )
        return EngineInput(
            engine_prompt, params, request_id, body.priority, lora_request=self.lora_request
        )

    def prepare(self) -> Completion:
        """Check it as the engine does, so that running it is not left to find out. Returns itself.

        Raises ApiError.
        """
        self.serving.prepare(self.entries, self.body)
        return self

    def response(self) -> EngineResponse:
        """Run it."""
        work = self._stream if self.body.stream else self._full
        return self.serving.response(work, self.body.field_of)

    # -- all at once ------------------------------------------------------------------------------

    async def _full(self, channel: Channel) -> None:
        finals = await run_all([answer(self.serving, entry) for entry in self.entries])
        await channel.json_list(
            lambda: self._content(finals), "choices", self._choices(finals), self.is_big
        )

    def _content(self, finals: list[RequestOutput]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model_name,
            "choices": [],
            "service_tier": None,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "usage": self.serving.usage(
                sum(len(final.prompt_token_ids) for final in finals),
                sum(len(output.token_ids) for final in finals for output in final.outputs),
                finals[-1].num_cached_tokens,
            ),
            "kv_transfer_params": None,
        }

    def _choices(self, finals: list[RequestOutput]) -> Iterator[dict[str, Any]]:
        index = 0
        for entry, final in zip(self.entries, finals, strict=True):
            for output in final.outputs:
                yield self._choice(entry, final, output) | {"index": index}
                index += 1

    def _choice(
        self, entry: EngineInput, final: RequestOutput, output: CompletionOutput
    ) -> dict[str, Any]:
        body = self.body
        text, token_ids = output.text, output.token_ids
        positions: list[Any] = output.logprobs or []
        if self.echo:
            text = self._prompt_text(entry) + ("" if self.echo_only else text)
            token_ids = final.prompt_token_ids + ([] if self.echo_only else token_ids)
            positions = list(final.prompt_logprobs or []) + ([] if self.echo_only else positions)
        logprobs = None
        if body.logprobs is not None:
            logprobs = self.formatter.completion(token_ids, positions, body.logprobs)
        return {
            "index": 0,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
            "token_ids": output.token_ids if body.return_token_ids else None,
            "prompt_logprobs": prompt_logprobs(final.prompt_logprobs),
            "prompt_token_ids": final.prompt_token_ids if body.return_token_ids else None,
            "routed_experts": None,
        }

    def _prompt_text(self, entry: EngineInput) -> str:
        if self.body.return_token_ids:
            return ""
        text = entry.prompt.get("prompt")
        if text is not None:
            return text
        return self.serving.tokenizer.decode(entry.prompt["prompt_token_ids"], False)

    # -- as it comes ------------------------------------------------------------------------------

    async def _stream(self, channel: Channel) -> None:
        body, serving = self.body, self.serving
        include_usage, continuous = usage_options(body)
        totals = [_StreamState() for _ in range(len(self.entries) * self.n)]
        cached: list[int | None] = [None] * len(self.entries)
        jobs = [
            self._stream_prompt(channel, place, entry, totals, cached, include_usage, continuous)
            for place, entry in enumerate(self.entries)
        ]
        await run_all(jobs)
        end = DONE
        if include_usage:
            prompt_tokens = sum(len(entry.prompt["prompt_token_ids"]) for entry in self.entries)
            usage = serving.usage(prompt_tokens, sum(t.num_tokens for t in totals), cached[0])
            chunk = self._chunk([], system_fingerprint=SYSTEM_FINGERPRINT, usage=usage)
            if usage["prompt_tokens_details"] is None:
                del usage["prompt_tokens_details"]
            end = sse(chunk) + DONE
        await channel.events(end, last=True)

    async def _stream_prompt(
        self,
        channel: Channel,
        place: int,
        entry: EngineInput,
        totals: list[_StreamState],
        cached: list[int | None],
        include_usage: bool,
        continuous: bool,
    ) -> None:
        body = self.body
        head = (
            f'data: {{"id":{quote(self.id)},"object":"text_completion","created":{self.created},'
            f'"model":{quote(self.model_name)},"choices":[{{"index":'
        )
        middle = ',"text":'
        tail = ',"logprobs":null,"finish_reason":null,"stop_reason":null,'
        tail += '"prompt_token_ids":null,"token_ids":null}]}\n\n'
        only_text = body.logprobs is None and not (self.echo or body.return_token_ids or continuous)
        async with self.serving.generate(entry) as (outputs, tracked):
            async for result in outputs:
                if cached[place] is None:
                    cached[place] = result.num_cached_tokens
                events = ""
                for output in result.outputs:
                    index = output.index + place * self.n
                    state = totals[index]
                    if only_text and output.finish_reason is None:
                        state.num_tokens += len(output.token_ids)
                        events += f"{head}{index}{middle}{quote(output.text)}{tail}"
                        continue
                    tracked.finished(output)
                    chunk = self._full_chunk(entry, result, output, index, state)
                    if output.finish_reason is not None and not include_usage:
                        chunk["system_fingerprint"] = SYSTEM_FINGERPRINT
                    if continuous:
                        chunk["usage"] = _running_usage(entry, state.num_tokens)
                    events += sse(chunk).decode()
                await channel.events(events.encode())

    def _full_chunk(
        self,
        entry: EngineInput,
        result: RequestOutput,
        output: CompletionOutput,
        index: int,
        state: _StreamState,
    ) -> dict[str, Any]:
        """A chunk that tells more than text, or the last one."""
        body = self.body
        text, token_ids = output.text, output.token_ids
        positions: list[Any] = output.logprobs or []
        first = not state.num_tokens
        if self.echo and first:
            rest = [] if self.echo_only else token_ids
            text = self._prompt_text(entry) + ("" if self.echo_only else text)
            token_ids = entry.prompt["prompt_token_ids"] + rest
            positions = list(result.prompt_logprobs or []) + ([] if self.echo_only else positions)
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None}
        if body.logprobs is not None:
            choice["logprobs"] = self.formatter.completion(
                token_ids, positions, body.logprobs, state.num_chars
            )
        choice["finish_reason"] = output.finish_reason
        choice["stop_reason"] = output.stop_reason
        shows_prompt = first and (self.echo or body.return_token_ids)
        choice["prompt_token_ids"] = entry.prompt["prompt_token_ids"] if shows_prompt else None
        choice["token_ids"] = output.token_ids if body.return_token_ids else None
        state.num_tokens += len(output.token_ids)
        state.num_chars += len(text)
        return self._chunk([choice])

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model_name,
            "choices": choices,
            **more,
        }


class _StreamState:
    """How far one completion's stream has come."""

    __slots__ = ("num_chars", "num_tokens")

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_chars = 0


def _running_usage(entry: EngineInput, num_tokens: int) -> dict[str, int]:
    prompt_tokens = len(entry.prompt["prompt_token_ids"])
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + num_tokens,
        "completion_tokens": num_tokens,
    }
