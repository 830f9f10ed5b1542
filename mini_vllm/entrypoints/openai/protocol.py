"""The request bodies of `/v1/completions` and `/v1/chat/completions`.

Field names, types and defaults are those of
`vllm/entrypoints/openai/completion/protocol.py:42 CompletionRequest` and
`vllm/entrypoints/openai/chat_completion/protocol.py:183 ChatCompletionRequest`. As there, a field
that is not known is ignored, and pydantic converts where nothing is lost (`"5"` to 5).

Fields of vLLM's that the miniature has not, and those that earlier releases had (`guided_json`), are
refused by name unless their value asks for nothing: `surface.json` lists them. Ignoring a rule in silence
would be worse than an error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)

from mini_vllm.entrypoints.openai.errors import bad_request
from mini_vllm.entrypoints.openai.rules import FORMAT_SCHEMA, RULE_SCHEMA, rule_field
from mini_vllm.entrypoints.openai.tools import check_tools
from mini_vllm.sampling_params import RepetitionDetectionParams
from mini_vllm.utils.surface import is_harmless, refusal
from mini_vllm.utils.untrusted import shorten_repr

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_MAX_STOPS = 128
_MAX_WORD = 1024  # characters
_MAX_WORDS = 1024  # each is tokenized twice, and looked at in each step
_MAX_ENTRIES = 65536
_MAX_MESSAGES = 16384

_PROMPT_SCHEMA: dict[str, Any] = {
    "title": "Prompt",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        },
    ],
}


def _not_too_many(limit: int) -> BeforeValidator:
    """Refuse long collections before each entry is looked at, and complained about."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > limit:
            raise ValueError(f"at most {limit} entries are taken, these are {len(value)}")
        return value

    return BeforeValidator(check)


def _check_biases(value: Any) -> Any:
    """Refuse the first bias that is none: pydantic would have an error of its own for each of thousands.

    Raises ApiError.
    """
    for key, bias in value.items() if isinstance(value, dict) else ():
        try:
            if isinstance(bias, int | float | str):
                float(bias)
                continue
        except (ValueError, OverflowError):
            pass
        raise bad_request(
            f"logit_bias[{shorten_repr(key)}] must be a number, got {shorten_repr(bias)}",
            "logit_bias",
        )
    return value


def _bounds(**bounds: float) -> Any:
    """Bounds for `/openapi.json` alone: it is `SamplingParams` that checks them, with its own words."""
    return Field(json_schema_extra=dict(bounds))


Int64 = Annotated[int, Field(ge=_INT64_MIN, le=_INT64_MAX)]
# fail_fast: of thousands of bad entries the first is told; the others need no error of their own.
TokenIds = Annotated[list[int], Field(fail_fast=True), _not_too_many(_MAX_ENTRIES)]
Biases = Annotated[dict[str, float], BeforeValidator(_check_biases), _not_too_many(_MAX_ENTRIES)]
# JSON has no other numbers. Python's reader knows some, and a beam's rank or a row would come to nothing.
Finite = Annotated[float, Field(allow_inf_nan=False)]
_Plain = str | int | Finite
_Plains = Annotated[list[_Plain], Field(fail_fast=True), _not_too_many(_MAX_ENTRIES)]
Extras = Annotated[dict[str, _Plain | _Plains], _not_too_many(_MAX_WORDS)]
"""What logits processors of your own read, as `SamplingParams.extra_args`. Completions have no lists there at
the pin."""
Stops = Annotated[str | list[str], _not_too_many(_MAX_STOPS)]
Words = Annotated[
    list[Annotated[str, Field(max_length=_MAX_WORD)]],
    Field(fail_fast=True),
    _not_too_many(_MAX_WORDS),
]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True), _not_too_many(_MAX_ENTRIES)]
# Checked one by one in `prompts.py`: pydantic would try each form in turn and list every failure.
Prompt = Annotated[Any, WithJsonSchema(_PROMPT_SCHEMA)]
# As a prompt: in `rules.py`.
ResponseFormat = Annotated[Any, WithJsonSchema(FORMAT_SCHEMA)]
StructuredOutputs = Annotated[Any, WithJsonSchema(RULE_SCHEMA)]


class StreamOptions(BaseModel):
    """`vllm/entrypoints/openai/engine/protocol.py:161 StreamOptions`."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class RequestBody(BaseModel):
    """A body that refuses what vLLM has and the miniature has not. Raises ApiError."""

    @model_validator(mode="before")
    @classmethod
    def refuse_missing(cls, data: Any) -> Any:
        for name, value in data.items() if isinstance(data, dict) else ():
            for kind in ("fields", "former"):
                message = refusal(kind, name, f"{name}={shorten_repr(value)}")
                if message is not None and not is_harmless(kind, name, value):
                    raise bad_request(message, name)
        return data


class SamplingFields(RequestBody):
    """The fields that both endpoints have."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    frequency_penalty: Annotated[Finite | None, _bounds(minimum=-2, maximum=2)] = 0.0
    logit_bias: Biases | None = None
    n: Annotated[int | None, _bounds(minimum=1)] = 1
    presence_penalty: Annotated[Finite | None, _bounds(minimum=-2, maximum=2)] = 0.0
    seed: Int64 | None = None
    stop: Stops | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[Finite | None, _bounds(minimum=0)] = None
    top_p: Annotated[Finite | None, _bounds(exclusiveMinimum=0, maximum=1)] = None
    user: str | None = None

    top_k: Annotated[int | None, _bounds(minimum=-1)] = None
    min_p: Annotated[Finite | None, _bounds(minimum=0, maximum=1)] = None
    repetition_penalty: Annotated[Finite | None, _bounds(exclusiveMinimum=0)] = None
    use_beam_search: bool = False
    length_penalty: Finite = 1.0
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Annotated[int, _bounds(minimum=0)] = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=_INT64_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: Annotated[int | None, _bounds(minimum=-1)] = None
    allowed_token_ids: TokenIds | None = None
    priority: Int64 = 0
    request_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    vllm_xargs: Extras | None = None
    response_format: ResponseFormat = None
    structured_outputs: StructuredOutputs = None

    def field_of(self, parameter: str) -> str:
        """The field that set a parameter of the engine, which is what an error is to name."""
        if parameter.startswith("structured_outputs"):
            return rule_field(parameter, self.response_format)
        return "n" if parameter == "beam_width" else parameter

    def check(self) -> None:
        """Rules that join fields. Raises ApiError."""
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options can only be given with stream=true", "stream_options")
        if self.use_beam_search and self.stream:
            raise bad_request(
                "use_beam_search cannot be had with stream=true: which beam is best is known at the end",
                "use_beam_search",
            )
        wanted = self.prompt_logprobs
        if wanted is not None:
            if wanted < -1:
                raise bad_request(
                    f"prompt_logprobs must be at least 0, or -1 for the vocabulary, got {wanted}",
                    "prompt_logprobs",
                )
            if self.stream and wanted != 0:
                raise bad_request(
                    f"prompt_logprobs={wanted} cannot be had with stream=true", "prompt_logprobs"
                )


class CompletionRequest(SamplingFields):
    """The body of `POST /v1/completions`."""

    prompt: Prompt = None
    echo: bool | None = False
    logprobs: Annotated[int | None, _bounds(minimum=0)] = None
    max_tokens: Annotated[int | None, _bounds(minimum=0)] = 16
    add_special_tokens: bool = True

    @model_validator(mode="before")
    @classmethod
    def refuse_bad_words(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("bad_words"):
            raise bad_request("bad_words is a field of /v1/chat/completions only", "bad_words")
        return data

    def field_of(self, parameter: str) -> str:
        """See `SamplingFields.field_of`. With `echo`, `logprobs` is for the prompt too."""
        if parameter == "prompt_logprobs" and self.prompt_logprobs is None:
            return "logprobs"
        return super().field_of(parameter)

    def check(self) -> None:
        super().check()
        if self.logprobs is not None and self.logprobs < 0:
            raise bad_request(f"logprobs must be at least 0, got {self.logprobs}", "logprobs")
        if self.use_beam_search and self.echo and self.logprobs is not None:
            raise bad_request(
                "echo with logprobs cannot be had with use_beam_search: a search does not score the prompt",
                "echo",
            )


class ChatMessageParam(BaseModel):
    """One message of a chat. Further keys (`name`, `tool_calls`, …) reach the chat template."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | Objects | None = None


Messages = Annotated[list[ChatMessageParam], Field(fail_fast=True), _not_too_many(_MAX_MESSAGES)]


class ChatCompletionRequest(SamplingFields):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[Messages, Field(min_length=1)]
    logprobs: bool | None = False
    top_logprobs: Annotated[int | None, _bounds(minimum=-1)] = 0
    max_tokens: Annotated[int | None, _bounds(minimum=1)] = None
    max_completion_tokens: Annotated[int | None, _bounds(minimum=1)] = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    bad_words: Words = []
    documents: Objects | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_prompt_text: bool | None = None
    _obeys_tools: bool = PrivateAttr(default=False)

    def field_of(self, parameter: str) -> str:
        """See `SamplingFields.field_of`."""
        if self._obeys_tools and parameter.startswith("structured_outputs"):
            return "tools"
        if parameter == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        if parameter == "prompt_logprobs" and self.prompt_logprobs is not None:
            return parameter
        names = {
            "prompt": "messages",
            "logprobs": "top_logprobs",
            "prompt_logprobs": "top_logprobs",
        }
        return names.get(parameter) or super().field_of(parameter)

    def check(self) -> None:
        super().check()
        top = self.top_logprobs
        if top is not None:
            if top < -1:
                raise bad_request(
                    f"top_logprobs must be at least 0, or -1 for the vocabulary, got {top}",
                    "top_logprobs",
                )
            if top != 0 and not self.logprobs:
                raise bad_request(f"top_logprobs={top} needs logprobs=true", "top_logprobs")
        if self.continue_final_message and self.add_generation_prompt:
            raise bad_request(
                "continue_final_message and add_generation_prompt cannot both be true: the second "
                "is true unless it is set to false",
                "continue_final_message",
            )
        self.check_template()
        check_tools(self)

    def check_template(self) -> None:
        """A template may hide among its own variables. Raises ApiError."""
        given = (self.chat_template_kwargs or {}).get("chat_template")
        message = refusal("fields", "chat_template", f"chat_template={shorten_repr(given)}")
        if given is not None:
            raise bad_request(str(message), "chat_template")

    def obey_tools(self, schema: dict[str, Any]) -> None:
        """Put the output under the rule of a tool choice, in place of any other
        (`vllm/tool_parsers/abstract_tool_parser.py:88 ToolParser.adjust_request`)."""
        self.structured_outputs, self.response_format = {"json": schema}, None
        self._obeys_tools = True
