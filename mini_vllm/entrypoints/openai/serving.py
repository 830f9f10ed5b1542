"""What both endpoints share: model names, limits, ids, one engine request after another, usage.

Mirrors `vllm/entrypoints/openai/engine/serving.py:132 OpenAIServing`.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mini_vllm.core.request import EngineCoreRequest
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.core import EngineDeadError
from mini_vllm.engine.input_processor import PromptDict
from mini_vllm.entrypoints.openai.body import BodyReader
from mini_vllm.entrypoints.openai.errors import (
    ApiError,
    as_api_error,
    bad_request,
    name_fields,
)
from mini_vllm.entrypoints.openai.metrics import EngineMetrics, RequestMetrics
from mini_vllm.entrypoints.openai.models import ServingModels
from mini_vllm.entrypoints.openai.prompts import PromptReader
from mini_vllm.entrypoints.openai.protocol import SamplingFields
from mini_vllm.entrypoints.openai.rules import check_too_long
from mini_vllm.entrypoints.openai.settings import ServerSettings
from mini_vllm.entrypoints.openai.stream import Channel, EngineResponse
from mini_vllm.model_loader import load_default_sampling_params
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import BeamSearchParams, SamplingParams
from mini_vllm.utils.untrusted import shorten_repr
from mini_vllm.version import __version__

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoRARequest

logger = logging.getLogger("mini_vllm.entrypoints.openai")
_BIG_ANSWER = 4096  # values
SYSTEM_FINGERPRINT = f"mini-vllm-{__version__}"


@dataclass(slots=True)
class EngineInput:
    """One prompt on its way into the engine."""

    prompt: PromptDict
    params: SamplingParams
    request_id: str
    priority: int
    beams: BeamSearchParams | None = None
    """A search to run in the place of the request; `params` are then those of its steps."""
    lora_request: LoRARequest | None = None
    """Its adapter."""
    request: EngineCoreRequest | None = None
    """What the engine makes of all this, once it has been made."""

    @property
    def size(self) -> tuple[int, int, int | None]:
        """Sequences, most tokens in each, and logprobs that are asked for with each token."""
        params, beams = self.params, self.beams
        if beams is not None:
            return beams.beam_width, beams.max_tokens, params.logprobs
        return params.n, params.max_tokens or 0, params.logprobs


class Serving:
    """The engine as the endpoints see it.

    Args:
        llm: the engine; it must have a tokenizer.
        settings: the server's.
        metrics: told of every request.

    Raises ValueError if the engine has no tokenizer, the checkpoint's settings are not usable, or the library
    that is to compile rules is missing.
    """

    def __init__(self, llm: AsyncLLM, settings: ServerSettings, metrics: EngineMetrics) -> None:
        engine = llm.engine
        if engine.tokenizer is None:
            raise ValueError("the server needs an engine with a tokenizer, got one without")
        self.llm = llm
        self.settings = settings
        self.metrics = metrics
        self.tokenizer = engine.tokenizer
        self.max_model_len = engine.config.max_model_len
        self.models = ServingModels(llm, settings)
        self.reader = PromptReader(
            engine.tokenizer, engine.model.config.vocab_size, self.max_model_len
        )
        asked = engine.config.structured_outputs
        self.grammar_backend = "auto" if asked is None else asked.backend
        if asked is not None:
            from mini_vllm.structured_output.manager import check_installed

            check_installed(asked.backend)
        self.bodies = BodyReader(
            settings.max_body_bytes, self.models.must_read, check_too_long, self._load_libraries
        )
        self.defaults: dict[str, Any] = load_default_sampling_params(settings.model)
        self.in_flight: set[EngineResponse] = set()
        self._counter = itertools.count()
        self._random = random.Random()  # an id is no secret, and asking the system for one is slow

    def _load_libraries(self) -> None:
        from mini_vllm.structured_output.manager import load_libraries

        load_libraries(self.grammar_backend)

    def check(self, body: SamplingFields) -> None:
        """Whether this server can answer the request at all. Raises ApiError, EngineDeadError."""
        self.models.check(body.model)
        body.check()
        if self.llm.errored:
            raise self.llm.dead_error

    def model_name(self, lora_request: LoRARequest | None) -> str:
        """What the answer calls the model
        (`vllm/entrypoints/openai/models/serving.py:137 OpenAIServingModels.model_name`)."""
        return self.settings.model_names[0] if lora_request is None else lora_request.lora_name

    def prepare(self, entries: Sequence[EngineInput], body: SamplingFields) -> None:
        """Make what the engine gets. Its checks too may take long, for a request of many words or prompts:
        they are done here, where the body is read, and not when it is to run. Raises ApiError."""
        process = self.llm.engine.input_processor.process_inputs
        try:
            for entry in entries:
                entry.request = process(
                    entry.request_id, entry.prompt, entry.params, priority=entry.priority,
                    lora_request=entry.lora_request,
                )  # fmt: skip
        except (TypeError, ValueError) as error:
            if str(error).startswith("lora_request "):
                raise bad_request(str(error), "model") from error
            if str(error).startswith("Token id "):
                field = body.field_of("prompt")
                raise bad_request(f"{field}: {error}", field) from error
            raise name_fields(error, body.field_of) from error

    def check_sequences(self, num_prompts: int, n: int | None) -> None:
        most = self.settings.max_sequences
        total = num_prompts * max(n or 1, 1)
        if total > most:
            raise bad_request(
                f"{num_prompts} prompts with n={n} make {shorten_repr(total)} sequences, more than this "
                f"server's limit of {most} a request",
                "n" if (n or 1) > 1 else "prompt",
            )

    def check_output_values(
        self, entries: Sequence[EngineInput], with_prompt: bool, field_of: Callable[[str], str]
    ) -> bool:
        """Refuse an answer that could become too big, before anything runs. Raises ApiError.

        Returns whether it could become so big that the loop is not to put it together.

        Args:
            entries: all prompts of the request.
            with_prompt: whether the answer repeats each prompt's tokens.
            field_of: the field that has set a parameter.
        """
        most, vocab_size = self.settings.max_output_values, self.reader.vocab_size

        def per_token(count: int | None) -> int:
            return 1 + (vocab_size if count == -1 else min(count or 0, vocab_size))

        total = 0
        for entry in entries:
            params = entry.params
            n, max_tokens, logprobs = entry.size
            values = max_tokens * per_token(logprobs)
            if with_prompt or params.prompt_logprobs is not None:
                values += len(entry.prompt["prompt_token_ids"]) * per_token(params.prompt_logprobs)
            total += n * values
        if total > most:
            longest = max(entries, key=lambda entry: entry.size[1])
            n, max_tokens, logprobs = longest.size
            asked = longest.params.prompt_logprobs
            prompt_values = "" if asked is None else f", prompt_logprobs={asked}"
            raise bad_request(
                f"{len(entries)} prompts, n={n}, {field_of('max_tokens')}={max_tokens}, "
                f"{field_of('logprobs')}={logprobs}{prompt_values}: up to {total} values in the answer, more "
                f"than this server's limit of {most}. A sequence counts tokens x (logprobs + 1), with "
                "its prompt's where they are asked for",
                "n" if n > 1 else field_of("logprobs" if logprobs else "max_tokens"),
            )
        return total > _BIG_ANSWER

    def step_hangs(self) -> bool:
        """Whether the step under way has run for longer than a step may."""
        return self.llm.step_seconds > self.settings.step_timeout

    def external_id(self, prefix: str, header: str | None, body: SamplingFields) -> str:
        """The answer's id: the header `X-Request-Id`, else `request_id`, else random
        (`vllm/entrypoints/openai/engine/serving.py:394 OpenAIServing._base_request_id`)."""
        if header is not None and not 0 < len(header) <= 256:
            raise bad_request(f"X-Request-Id must have 1 to 256 characters, got {len(header)}")
        return f"{prefix}-{header or body.request_id or self.random_id()}"

    def random_id(self) -> str:
        """16 hexadecimal digits, as many as vLLM's ids have."""
        return format(self._random.getrandbits(64), "016x")

    def engine_id(self, external_id: str) -> str:
        """An id no other request has. Clients may give two requests the same, and that is fine."""
        return f"{external_id}-{next(self._counter)}"

    @asynccontextmanager
    async def generate(
        self, entry: EngineInput
    ) -> AsyncGenerator[tuple[AsyncGenerator[RequestOutput, None], RequestMetrics], None]:
        """Run one prompt: its outputs, and where to report its completions.

        Leaving the block early aborts it.
        """
        outputs = self.llm.generate(
            entry.request or entry.prompt, entry.params, entry.request_id, priority=entry.priority,
            lora_request=entry.lora_request,
        )  # fmt: skip
        tracked = self.metrics.request(entry.request_id, entry.params)
        try:
            async with (
                aclosing(outputs),
                aclosing(_without_errors(outputs, tracked, entry.params)) as good,
            ):
                yield good, tracked
        finally:
            tracked.close()

    async def run(self, entry: EngineInput) -> RequestOutput:
        """Run one prompt to its end and return its one FINAL_ONLY output."""
        final: RequestOutput | None = None
        async with self.generate(entry) as (outputs, tracked):
            async for final in outputs:
                for completion in final.outputs:
                    tracked.finished(completion)
        if final is None:
            raise ApiError(500, "the engine gave no output")
        return final

    def response(
        self, work: Callable[[Channel], Awaitable[None]], field_of: Callable[[str], str]
    ) -> EngineResponse:
        """Run a request. Of an error of the engine's, `field_of` says which field it is about."""
        explain = partial(name_fields, field_of=field_of)
        return EngineResponse(work, self.failed, explain, self.in_flight)

    def end_requests(self) -> None:
        """Break off every request that still runs, and tell its client why."""
        for response in list(self.in_flight):
            response.end(ApiError(503, "the server is shutting down"))

    def usage(
        self, prompt_tokens: int, completion_tokens: int, cached: int | None
    ) -> dict[str, Any]:
        details = None
        if self.settings.enable_prompt_tokens_details and cached:
            details = {"cached_tokens": cached}
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": details,
        }

    def failed(self, error: BaseException) -> None:
        """Log what is not the client's doing."""
        if isinstance(error, EngineDeadError):
            return  # its thread has logged why, once for all
        if as_api_error(error).status >= 500:
            logger.error("a request failed", exc_info=error)


async def _without_errors(
    outputs: AsyncGenerator[RequestOutput, None], tracked: RequestMetrics, params: SamplingParams
) -> AsyncGenerator[RequestOutput, None]:
    """Pass outputs on, and raise where one ends by an error. A rule that could not be compiled, or could not
    be obeyed further, is a ValueError. Upstream it is a 500
    (`vllm/entrypoints/openai/engine/serving.py:199 OpenAIServing._raise_if_error`)."""
    async for output in outputs:
        for completion in output.outputs:
            if completion.finish_reason == "error":
                tracked.finished(completion)
                raise _end_by_error(str(completion.stop_reason), params)
        yield output


def _end_by_error(reason: str, params: SamplingParams) -> Exception:
    if params.structured_outputs is None:
        return ApiError(500, reason)
    if reason.startswith("structured_outputs"):
        return ValueError(reason)
    from mini_vllm.structured_output.request import describe_rule, get_structured_output_key

    rule = describe_rule(get_structured_output_key(params.structured_outputs))
    return ValueError(
        f"{rule}: {reason}. What bars tokens or the end, such as ignore_eos, can make a rule impossible"
    )


def now() -> int:
    return int(time.time())


def usage_options(body: SamplingFields) -> tuple[bool, bool]:
    """Whether usage comes at the end of a stream, and whether with every chunk too
    (`vllm/entrypoints/utils.py:281 should_include_usage`)."""
    options = body.stream_options
    if options is None or not options.include_usage:
        return False, False
    return True, bool(options.continuous_usage_stats)
