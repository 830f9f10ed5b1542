"""Numbers at the ends of what a float can be, in every field that takes one, and whom a refusal names."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

for package in (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
):
    pytest.importorskip(package)

from mini_vllm.config.engine import EngineConfig  # noqa: E402
from mini_vllm.entrypoints.beam_search import get_beam_search_score  # noqa: E402
from mini_vllm.entrypoints.openai.app import BODIES  # noqa: E402
from tests.engine.helpers.server.server_helpers import Answer, ServerHere, serve_here  # noqa: E402

PATHS = {
    "CompletionRequest": "/v1/completions",
    "ChatCompletionRequest": "/v1/chat/completions",
    "TokenizeRequest": "/tokenize",
    "DetokenizeRequest": "/detokenize",
    "LoadLoRAAdapterRequest": "/v1/load_lora_adapter",
    "UnloadLoRAAdapterRequest": "/v1/unload_lora_adapter",
}
NUMBERS = (
    "NaN", "Infinity", "-Infinity", "1e308", "-1e308", "1e-320", "-1e-320", "1e999", "0", "-0.0",
    "1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 30,
)  # fmt: skip
NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999")
OTHER_BODIES: dict[str, Any] = {
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
    "/v1/unload_lora_adapter": {"lora_name": "x"},
}
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerHere]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        with serve_here(EngineConfig(max_model_len=64, enable_lora=True)) as running:
            yield running
            running.check_unharmed()


def number_fields(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[str]:
    """What a number can stand in: `NAME`, or `NAME{}` for the values of an object, `NAME.PART` for a part of
    one and `NAME[]` for an entry of a list."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if schema.get("type") in ("number", "integer"):
        yield ""
    for one in schema.get("anyOf", ()):
        yield from number_fields(one, definitions)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from (
            "{}" + rest for rest in number_fields(schema["additionalProperties"], definitions)
        )
    if "items" in schema:
        yield from ("[]" + rest for rest in number_fields(schema["items"], definitions))
    for name, part in schema.get("properties", {}).items():
        yield from (f".{name}{rest}" for rest in number_fields(part, definitions))


def fields() -> list[tuple[str, str]]:
    """Every place of every body that takes a number."""
    found = []
    for model in BODIES:
        schema = model.model_json_schema()
        paths = number_fields(schema, schema.get("$defs", {}))
        found += [(PATHS[model.__name__], path[1:]) for path in sorted(set(paths))]
    return found


def with_number(path: str, place: str, number: str) -> tuple[bytes, str]:
    """A body that is otherwise valid, with the number in that place, and the field that is to be blamed."""
    value = number
    name, dot, part = place.partition(".")
    if dot:
        value = f'{{"{part}": {number}}}'
    while name.endswith(("{}", "[]")):
        name, kind = name[:-2], name[-2:]
        value = f'{{"5": {value}}}' if kind == "{}" else f"[{value}]"
    body: dict[str, Any] = OTHER_BODIES.get(path, {})
    if not body:
        text = {"messages": MESSAGES} if "chat" in path else {"prompt": "x"}
        body = {**text, "max_tokens": 3, "seed": 1, "n": 1, "temperature": 0.5}
    parts = [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in body.items() if key != name]
    return "{{{}}}".format(", ".join([*parts, f'"{name}": {value}'])).encode(), name


def strict_json(answer: Answer) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(answer.body, parse_constant=refuse)


def test_the_schema_has_these_floats() -> None:
    """So that the test below is known to have something to look at."""
    found = set(fields())
    for name in (
        "temperature",
        "top_p",
        "min_p",
        "length_penalty",
        "presence_penalty",
        "logit_bias{}",
    ):
        assert ("/v1/completions", name) in found
        assert ("/v1/chat/completions", name) in found
    assert ("/v1/chat/completions", "repetition_detection.min_count") in found
    assert ("/v1/completions", "vllm_xargs{}[]") in found
    assert ("/detokenize", "tokens[]") in found


@pytest.mark.parametrize("beams", [False, True])
@pytest.mark.parametrize(("path", "place"), fields())
def test_a_number_is_taken_or_refused_by_its_field(
    server: ServerHere, path: str, place: str, beams: bool
) -> None:
    for number in NUMBERS:
        body, name = with_number(path, place, number)
        if beams:
            body = body[:-1].replace(b'"n": 1', b'"n": 2') + b', "use_beam_search": true}'
        answer = server.send(path, body)
        taken = (
            404 if path == "/v1/unload_lora_adapter" else 200
        )  # there is no adapter of that name
        assert answer.status in (taken, 400), (body, answer.body)
        content = strict_json(answer)
        if answer.status == taken:
            assert number not in NO_NUMBERS or place == "logit_bias{}", (number, "was taken")
            continue
        error = content["error"]
        assert name in error["message"], (body, error)
        assert error["param"] == name, (body, error)


def test_what_is_rendered_is_json(server: ServerHere) -> None:
    body = b'{"prompt": "x", "vllm_xargs": {"a": [NaN]}}'
    answer = server.send("/v1/completions/render", body)
    assert (answer.status, answer.error["param"]) == (400, "vllm_xargs")


def test_ranks_where_the_power_is_no_float() -> None:
    """Long ones first, or short ones, and no error. In between as vLLM has it."""
    tokens = [5, 6, 7]
    assert get_beam_search_score(tokens, -3.0, 2, 2.0) == -3.0 / 9
    assert get_beam_search_score([*tokens, 2], -3.0, 2, 2.0) == -3.0 / 9
    assert get_beam_search_score(tokens, -3.0, 2, 1e308) == 0.0
    assert get_beam_search_score(tokens, -3.0, 2, -1e308) == -math.inf
    assert get_beam_search_score(tokens, 0.0, 2, -1e308) == 0.0
    assert get_beam_search_score([5], -3.0, 2, 1e308) == -3.0


# -- whom a refusal names -------------------------------------------------------------------------

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (TEXT, {"n": 0, "use_beam_search": True}, "n", "n must be an integer of at least 1"),
        (TEXT, {"n": 11, "use_beam_search": True}, "n", "n=11 with use_beam_search needs 22"),
        (CHAT, {"n": 11, "use_beam_search": True}, "n", "n=11 with use_beam_search needs 22"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens must be"),
        (CHAT, {"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1"),
        (CHAT, {"max_completion_tokens": 99}, "max_completion_tokens", "max_completion_tokens=99 cannot"),
        (CHAT, {"max_completion_tokens": 2, "min_tokens": 3}, "min_tokens", "max_completion_tokens=2"),
        (CHAT, {"max_completion_tokens": 0, "use_beam_search": True}, "max_completion_tokens", "must be"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs=21 asks for more"),
        (CHAT, {"logprobs": True, "top_logprobs": 20, "n": 1000, "max_tokens": 30}, "n", "top_logprobs=20"),
        (TEXT, {"logprobs": 21, "echo": True}, "logprobs", "logprobs=21 asks for more"),
        (TEXT, {"prompt_logprobs": 21, "echo": True}, "prompt_logprobs", "prompt_logprobs=21 asks"),
        (CHAT, {"prompt_logprobs": 21}, "prompt_logprobs", "prompt_logprobs=21 asks for more"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 99}]}, "messages", "input tokens"),
        (TEXT, {"prompt": "x" * 99}, "prompt", "input tokens"),
        (TEXT, {"prompt": [1, 264]}, "prompt", "264 is out of vocabulary"),
        (TEXT, {"prompt": ["x"] * 1025}, "prompt", "1025 prompts"),
        (TEXT, {"stream_options": {"include_usage": 7}, "stream": True}, "stream_options", "got 7"),
        (TEXT, {"stream_options": {}}, "stream_options", "stream=true"),
        (CHAT, {"response_format": {"type": "json"}}, "response_format", "response_format: type must be"),
        (CHAT, {"structured_outputs": {"regex": "("}}, "structured_outputs", "structured_outputs.regex '('"),
        (CHAT, {"tools": [5]}, "tools", "got 5"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools", "tools[0].function must be an object"),
        (CHAT, {"tools": [{"function": {"name": "f"}}]}, "tool_choice", "tool_choice='auto' needs a server"),
        (TEXT, {"prompt": "\ud800"}, "prompt", "prompt is not valid Unicode"),
        (TEXT, {"prompt": ["x", "a\udfff"]}, "prompt[1]", "prompt[1] is not valid Unicode"),
        (TEXT, {"stop": ["\ud800"]}, "stop[0]", "half of a surrogate pair"),
        (TEXT, {"user": "\ud800"}, "user", "user is not valid Unicode"),
        (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "Unicode"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]},
         "messages[0].content[0].text", "Unicode"),
        (CHAT, {"chat_template_kwargs": {"a": {"b": "\ud800"}}}, "chat_template_kwargs.a.b", "Unicode"),
        (CHAT, {"chat_template_kwargs": {"\ud800": 1}}, "chat_template_kwargs", "Unicode"),
        ("/tokenize", {"prompt": "\ud800"}, "prompt", "Unicode"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("in_bytes", [False, True])
def test_the_field_that_the_user_wrote(
    server: ServerHere, path: str, body: dict[str, Any], param: str, words: str, in_bytes: bool
) -> None:
    given: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": "x"}
    text = json.dumps({**given, "temperature": 0.5, **body}, ensure_ascii=not in_bytes)
    answer = server.send(path, text.encode("utf-8", "surrogatepass"))
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param, answer.error
    assert words in answer.error["message"], answer.error


def test_a_prompt_that_fills_the_model_is_too_long(server: ServerHere) -> None:
    """vLLM refuses a `max_tokens` of 0 there, though the request sets none."""
    for asked in ({}, {"echo": True, "max_tokens": 0}, {"use_beam_search": True}):
        answer = server.complete(prompt=[5] * 64, **{"max_tokens": None, **asked})
        assert "requested 1 output tokens and your prompt contains 64" in answer.error["message"]
    assert server.complete(prompt=[5] * 63, max_tokens=None).json["usage"]["total_tokens"] == 64


@pytest.mark.vllm
def test_too_long_in_the_words_of_vllm(server: ServerHere) -> None:
    """vLLM's own checks of lengths, on the same numbers: its text is ours, and what it appends."""
    from vllm.renderers.params import TokenizeParams

    reader_chars = 13  # of the longest token, `<|assistant|>`
    cases: list[tuple[dict[str, Any], int, Any]] = [
        ({"prompt": [5] * 99, "max_tokens": 6}, 6, [5] * 99),
        ({"prompt": [5] * 60, "max_tokens": 5}, 5, [5] * 60),
        ({"prompt": "x" * 4000, "max_tokens": 16}, 16, "x" * 4000),
        ({"prompt": "x" * 70, "max_tokens": 16}, 16, [1] + [5] * 70),
        ({"prompt": "x" * 70, "max_tokens": None}, 0, [1] + [5] * 70),
    ]
    for body, output, prompt in cases:
        said = server.complete(**body).error["message"]
        params = TokenizeParams(
            64, output, max_total_tokens_param="max_model_len", max_output_tokens_param="max_tokens"
        )
        check = params._text_len_check if isinstance(prompt, str) else params._token_len_check
        with pytest.raises(ValueError, match="maximum context length") as caught:
            check(SimpleNamespace(max_chars_per_token=reader_chars), prompt)
        assert str(caught.value).replace("at least ", "").startswith(said), said
    with pytest.raises(ValueError, match="fewer output tokens") as caught:
        TokenizeParams(
            64, 99, max_total_tokens_param="max_model_len", max_output_tokens_param="max_tokens"
        )
    said = server.complete(prompt="x", max_tokens=99).error["message"]
    assert str(caught.value).replace("max_total_tokens=", "").startswith(said)
    with pytest.raises(ValueError, match="smaller truncation") as caught:
        TokenizeParams(
            64, 6, truncate_prompt_tokens=60,
            max_total_tokens_param="max_model_len", max_output_tokens_param="max_tokens",
        )  # fmt: skip
    said = server.complete(prompt="x", max_tokens=6, truncate_prompt_tokens=60).error["message"]
    assert str(caught.value).startswith(said)
