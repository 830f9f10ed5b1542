"""What the server refuses: each with a 4xx in OpenAI's shape, the engine none the worse for it."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.helpers.patience import PATIENCE

for package in (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
):
    pytest.importorskip(package)

from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig  # noqa: E402
from mini_vllm.entrypoints.cli import serve  # noqa: E402
from mini_vllm.entrypoints.openai.settings import ServerSettings  # noqa: E402
from tests.engine.helpers.server.server_helpers import MODEL_NAME, ServerHere, serve_here  # noqa: E402

LIMIT = 20_000
HUGE = 10**30
# LiteLLM, DSPy and Inspect know by these words, and by no status or code, that a shorter prompt would do.
TOO_LONG = "This model's maximum context length is 1024 tokens. However, you requested "


@pytest.fixture(scope="module")
def server() -> Iterator[ServerHere]:
    with serve_here(max_body_bytes=LIMIT, max_sequences=8) as running:
        yield running
        running.check_unharmed()


# field, value, param of the error, a part of its message
BAD_COMPLETIONS: list[tuple[str, Any, str | None, str]] = [
    ("prompt", None, "prompt", "got None"),
    ("prompt", "", "prompt", "got ''"),
    ("prompt", [], "prompt", "got []"),
    ("prompt", [[]], "prompt", "prompt[0] must not be empty"),
    ("prompt", ["x", ""], "prompt", "prompt[1] must not be empty"),
    ("prompt", ["x", 5], "prompt", "got 5"),
    ("prompt", [5, "x"], "prompt", "got 'x'"),
    ("prompt", [True], "prompt", "got True"),
    ("prompt", [1.5], "prompt", "got 1.5"),
    ("prompt", [-1], "prompt", "got -1"),
    ("prompt", {"a": 1}, "prompt", "got {'a': 1}"),
    ("prompt", [264], "prompt", "264 is out of vocabulary"),
    ("prompt", [HUGE], "prompt", "out of vocabulary"),
    (
        "prompt",
        [1] * 1024,
        "prompt",
        TOO_LONG + "4 output tokens and your prompt contains 1024 input tokens",
    ),
    ("prompt", [1] * 1021, "prompt", "1021 input tokens, for a total of 1025 tokens."),
    (
        "prompt",
        "x" * 1024,
        "prompt",
        TOO_LONG + "4 output tokens and your prompt contains 1025 input tokens",
    ),
    ("prompt", "x" * 19_000, "prompt", "19000 characters (more than "),
    ("prompt", ["x"] * 9, "prompt", "9 prompts with n=1 make 9 sequences"),
    ("max_tokens", 0, "max_tokens", "at least 1, got 0"),
    ("max_tokens", -5, "max_tokens", "got -5"),
    ("max_tokens", -HUGE, "max_tokens", "at least 1"),
    ("max_tokens", HUGE, "max_tokens", "cannot be greater than max_model_len=1024"),
    ("max_tokens", 1023, "prompt", "1023 output tokens"),
    ("max_tokens", 1.5, "max_tokens", "got 1.5"),
    ("max_tokens", "many", "max_tokens", "got 'many'"),
    ("min_tokens", 9, "min_tokens", "got 9"),
    ("min_tokens", -1, "min_tokens", "got -1"),
    ("n", 0, "n", "got 0"),
    ("n", -1, "n", "got -1"),
    ("n", 2, "n", "greedy"),
    ("n", 9, "n", "9 sequences"),
    ("n", HUGE, "n", "sequences"),
    ("temperature", -0.1, "temperature", "-0.1"),
    ("temperature", "hot", "temperature", "got 'hot'"),
    ("temperature", [0], "temperature", "got [0]"),
    ("top_p", 0, "top_p", "got 0"),
    ("top_p", 1.1, "top_p", "1.1"),
    ("top_k", -2, "top_k", "-2"),
    ("min_p", 2, "min_p", "got 2"),
    ("presence_penalty", 2.1, "presence_penalty", "2.1"),
    ("frequency_penalty", -3, "frequency_penalty", "-3"),
    ("repetition_penalty", 0, "repetition_penalty", "got 0"),
    ("seed", 2**63, "seed", "less than or equal to"),
    ("stop", "", "stop", "got ''"),
    ("stop", [""], "stop", "empty"),
    ("stop", 5, "stop", "got 5"),
    ("stop", [5], "stop", "got [5]"),
    ("stop", ["x"] * 129, "stop", "at most 128"),
    ("stop_token_ids", [264], "stop_token_ids", "264"),
    ("stop_token_ids", "x", "stop_token_ids", "got 'x'"),
    ("allowed_token_ids", [], "allowed_token_ids", "got []"),
    ("allowed_token_ids", [-1], "allowed_token_ids", "-1"),
    ("logit_bias", {"x": 1}, "logit_bias", "got 'x'"),
    ("logit_bias", {" 5": 1}, "logit_bias", "got ' 5'"),
    ("logit_bias", {"\u0661": 1}, "logit_bias", "plain decimal digits"),
    ("logit_bias", {"1_0": 1}, "logit_bias", "got '1_0'"),
    ("logit_bias", {"+5": 1}, "logit_bias", "got '+5'"),
    ("logit_bias", {"05": 1}, "logit_bias", "got '05'"),
    ("logit_bias", {"": 1}, "logit_bias", "got ''"),
    ("logit_bias", {"-1": 1}, "logit_bias", "-1"),
    ("logit_bias", {"9" * 99: 1}, "logit_bias", "plain decimal digits"),
    ("logit_bias", {"264": 1}, "logit_bias", "264"),
    ("logit_bias", {"5": "much"}, "logit_bias", "got 'much'"),
    ("logit_bias", {"5": "nan"}, "logit_bias", "got nan"),
    ("logprobs", -1, "logprobs", "got -1"),
    ("logprobs", 21, "logprobs", "allowed 20"),
    ("logprobs", HUGE, "logprobs", "allowed 20"),
    ("prompt_logprobs", -2, "prompt_logprobs", "got -2"),
    ("prompt_logprobs", -1, "prompt_logprobs", "allowed 20"),
    ("stream", "perhaps", "stream", "got 'perhaps'"),
    ("stream_options", {"include_usage": True}, "stream_options", "stream=true"),
    ("stream_options", 1, "stream_options", "got 1"),
    ("priority", 2**63, "priority", "less than or equal to"),
    ("truncate_prompt_tokens", -2, "truncate_prompt_tokens", "got -2"),
    ("truncate_prompt_tokens", 0, "truncate_prompt_tokens", "0 tokens"),
    ("truncate_prompt_tokens", 1024, "truncate_prompt_tokens", "1024"),
    ("truncation_side", "up", "truncation_side", "got 'up'"),
    ("request_id", "", "request_id", "got ''"),
    ("request_id", "x" * 257, "request_id", "at most 256"),
    ("cache_salt", "", "cache_salt", "got ''"),
    ("suffix", "x", "suffix", "mini_vllm has not, because"),
    ("prompt_embeds", "x", "prompt_embeds", "mini_vllm has not, because"),
    ("use_beam_search", 5, "use_beam_search", "got 5"),
    ("length_penalty", "long", "length_penalty", "got 'long'"),
    ("guided_json", {}, "guided_json", "because a rule is a field of structured_outputs now"),
    ("bad_words", ["x"], "bad_words", "/v1/chat/completions only"),
]
BAD_CHATS: list[tuple[str, Any, str | None, str]] = [
    ("messages", None, "messages", "got None"),
    ("messages", [], "messages", "at least 1"),
    ("messages", "hello", "messages", "got 'hello'"),
    ("messages", [5], "messages", "got 5"),
    ("messages", [{"content": "x"}], "messages", "required"),
    ("messages", [{"role": "user", "content": 5}], "messages", "got 5"),
    ("messages", [{"role": "tool", "content": "x"}], "messages", "unknown role: tool"),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
     "messages", "reads text only"),
    ("messages", [{"role": "user", "content": [{"text": "x"}]}], "messages", "reads text only"),
    ("messages", [{"role": "user", "content": "x" * 2000}], "messages", "2003 input tokens"),
    ("top_logprobs", 2, "top_logprobs", "needs logprobs=true"),
    ("top_logprobs", -2, "top_logprobs", "got -2"),
    ("max_completion_tokens", 0, "max_completion_tokens", "at least 1, got 0"),
    ("max_completion_tokens", 2000, "max_completion_tokens", "max_completion_tokens=2000 cannot"),
    ("tools", [], "tools", "at least one"),
    ("tools", [{"type": "function", "function": {"name": "f"}}], "tool_choice", "--tool-call-parser"),
    ("tool_choice", "required", "tool_choice", "needs tools"),
    ("continue_final_message", True, "continue_final_message", "cannot both"),
    ("chat_template", "x", "chat_template", "mini_vllm has not, because"),
    ("chat_template_kwargs", {"chat_template": "x"}, "chat_template", "mini_vllm has not, because"),
    ("bad_words", "x", "bad_words", "got 'x'"),
    ("bad_words", [""], "bad_words", "empty string"),
    ("bad_words", ["x"] * 1025, "bad_words", "at most 1024 entries"),
    ("bad_words", ["x" * 1025], "bad_words", "at most 1024 characters"),
    ("temperature", -1, "temperature", "-1"),
    ("n", 9, "n", "9 sequences"),
]  # fmt: skip


def check_refusal(
    server: ServerHere, path: str, body: Any, param: str | None, part: str, status: int = 400
) -> None:
    answer = server.send(path, body)
    assert answer.status == status, answer.body
    error = answer.error
    assert part in error["message"], error
    assert error["param"] == param, error
    assert error["type"] == {400: "BadRequestError", 404: "NotFoundError"}[status]
    assert len(error["message"]) < 400, "the message repeats the request"


@pytest.mark.parametrize(("field", "value", "param", "part"), BAD_COMPLETIONS)
def test_a_bad_completion(
    server: ServerHere, field: str, value: Any, param: str | None, part: str
) -> None:
    body = {"prompt": "x", "temperature": 0, "max_tokens": 4, field: value}
    check_refusal(server, "/v1/completions", body, param, part)
    if field not in ("stream", "stream_options", "prompt_logprobs"):
        check_refusal(server, "/v1/completions", body | {"stream": True}, param, part)


@pytest.mark.parametrize(("field", "value", "param", "part"), BAD_CHATS)
def test_a_bad_chat(
    server: ServerHere, field: str, value: Any, param: str | None, part: str
) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 4}
    check_refusal(server, "/v1/chat/completions", body | {field: value}, param, part)
    body |= {field: value, "stream": True}
    check_refusal(server, "/v1/chat/completions", body, param, part)


def test_prompt_logprobs_cannot_be_streamed(server: ServerHere) -> None:
    body = {"prompt": "x", "prompt_logprobs": 1, "stream": True}
    check_refusal(server, "/v1/completions", body, "prompt_logprobs", "stream=true")


def test_an_unknown_model_is_not_found(server: ServerHere) -> None:
    body = {"prompt": "x", "model": "gpt-9"}
    check_refusal(server, "/v1/completions", body, "model", "`gpt-9` does not exist", 404)
    assert server.complete(prompt="x", max_tokens=1, model="").status == 200, "vLLM takes it"


def test_unknown_fields_are_ignored_and_numbers_in_strings_taken(server: ServerHere) -> None:
    answer = server.complete(prompt="x", max_tokens="2", no_such_field={"a": [1]}, best_of=1)
    assert answer.json["usage"]["completion_tokens"] == 2
    text = {"response_format": {"type": "text"}}
    assert server.complete(prompt="x", max_tokens=1, **text).status == 200


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "x"}}', "not valid JSON"),
        (b"\xff\xfe\xfd", "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"prompt": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[]", "must be a JSON object, got []"),
        (b"null", "must be a JSON object, got None"),
        (b'"prompt"', "must be a JSON object"),
        (b"[" * 10_000 + b"]" * 9_000, "nested too deeply"),
        (b'{"prompt": "\\ud800"}', "not valid Unicode"),
        (b'{"prompt": "x", "user": "\\uDFFF"}', "not valid Unicode"),
        (b'{"prompt": "x", "temperature": NaN}', "finite"),
        (b'{"prompt": "x", "temperature": 1e999}', "finite"),
        (b'{"prompt": "x", "max_tokens": Infinity}', "max_tokens"),
    ],
)
def test_a_body_that_is_no_request(server: ServerHere, body: bytes, part: str) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        answer = server.send(path, body)
        assert answer.status == 400
        message = answer.error["message"]
        assert part in message or "messages: this field is required" in message


def test_only_json_is_taken(server: ServerHere) -> None:
    for kind in ("text/plain", "", "application/x-www-form-urlencoded"):
        answer = server.send("/v1/completions", b"{}", headers={"Content-Type": kind})
        assert (answer.status, "application/json" in answer.error["message"]) == (400, True)
    kind = "application/json; charset=utf-8"
    answer = server.send("/v1/completions", {"prompt": "x"}, headers={"Content-Type": kind})
    assert answer.status == 200


def test_unknown_paths_and_methods(server: ServerHere) -> None:
    assert server.send("/v1/nothing").error["type"] == "NotFoundError"
    assert server.send("/v1/completions/", {}).status == 404
    for method in ("GET", "PUT", "DELETE"):
        answer = server.send("/v1/completions", method=method)
        assert answer.status == 405
        assert answer.headers["allow"] == "POST"
        assert answer.error["code"] == 405
    assert server.send("/health", {}).status == 405


def test_a_long_body_is_refused_before_it_is_read(server: ServerHere) -> None:
    """Whether the client says how long it is or not, and the rest of it never matters."""
    body = json.dumps({"prompt": "x" * LIMIT}).encode()
    answer = server.send("/v1/completions", body)
    assert answer.status == 413
    assert str(LIMIT) in answer.error["message"]
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    chunk = b"%x\r\n%s\r\n" % (1000, b" " * 1000)
    for start, parts in (
        (head + b"Content-Length: 999999999999\r\n\r\n", 0),
        (head + b"Transfer-Encoding: chunked\r\n\r\n", LIMIT // 1000 + 1),
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as sock:
            sock.sendall(start + chunk * parts)
            assert sock.recv(4096).startswith(b"HTTP/1.1 413")
    assert server.send("/v1/completions", b" " * (LIMIT + 1)).status == 413
    spaces = b'{"prompt": "x"}'.ljust(LIMIT)
    assert server.send("/v1/completions", spaces).status == 200, "the limit itself is allowed"


@pytest.mark.parametrize("chunked", [False, True])
def test_who_sends_it_all_first_still_reads_the_refusal(server: ServerHere, chunked: bool) -> None:
    """A connection closed on what it has not read is reset, and the answer with it."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    size = 2 * LIMIT - 1000
    if chunked:
        start, parts = b"Transfer-Encoding: chunked\r\n\r\n", [b"3e8\r\n%s\r\n" % (b" " * 1000)]
    else:
        start, parts = b"Content-Length: %d\r\n\r\n" % size, [b" " * 1000]
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as sock:
            sock.sendall(head + start)
            for part in parts * (size // 1000):
                sock.sendall(part)
                time.sleep(0.0005)
            sock.sendall(b"0\r\n\r\n" if chunked else b"")
            answer = b""
            while part := sock.recv(4096):
                answer += part
            assert answer.startswith(b"HTTP/1.1 413")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 413


@pytest.mark.parametrize("coding", ["gzip", "br", "GZIP, identity"])
def test_a_compressed_body_is_refused_by_name(server: ServerHere, coding: str) -> None:
    answer = server.send(
        "/v1/completions", gzip.compress(b'{"prompt": "x"}'), headers={"Content-Encoding": coding}
    )
    assert answer.status == 415
    assert answer.headers["accept-encoding"] == "identity"
    assert coding.lower() in answer.error["message"]
    body = {"prompt": "x", "max_tokens": 1}
    answer = server.send("/v1/completions", body, headers={"Content-Encoding": "identity"})
    assert answer.status == 200


def test_a_client_that_leaves_in_the_middle_of_its_body(server: ServerHere) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as sock:
            sock.sendall(head + b'Content-Length: 100\r\n\r\n{"prompt"')
    server.check_unharmed()


def test_a_request_that_the_pool_could_never_hold() -> None:
    with serve_here(EngineConfig(num_gpu_blocks=4)) as server:
        for stream in (False, True):
            body = {"prompt": "x" * 20, "max_tokens": 100, "stream": stream}
            check_refusal(server, "/v1/completions", body, None, "could wait for ever")
        several = {"prompt": ["x", "y" * 60], "max_tokens": 40}
        check_refusal(server, "/v1/completions", several, None, "could wait for ever")
        server.check_unharmed()


def test_a_key_is_asked_for_below_v1() -> None:
    with serve_here(api_key="secret") as server:
        for given in (None, "Bearer wrong", "Bearer", "secret", "Basic secret", "Bearer \xe9"):
            headers: dict[str, str] = {} if given is None else {"Authorization": given}
            answer = server.send("/v1/completions", {"prompt": "x"}, headers=headers)
            assert answer.status == 401
            assert answer.error["type"] == "AuthenticationError"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert server.send("/v1/models").status == 401
        assert server.send("/v1/models", headers={"Authorization": "bearer secret"}).status == 200
        assert server.send("/health").status == 200
        assert server.send("/metrics").status == 200


# -- settings -------------------------------------------------------------------------------------


def test_settings_are_checked() -> None:
    assert ServerSettings().model_names == (MODEL_NAME, str(DEFAULT_MODEL))
    for bad in ({"max_body_bytes": 0}, {"max_sequences": -1}, {"max_sequences": True}):
        with pytest.raises(ValueError, match="at least 1"):
            ServerSettings(**bad)
    with pytest.raises(ValueError, match="api_key must not be empty"):
        ServerSettings(api_key="")
    with pytest.raises(ValueError, match="empty name"):
        ServerSettings(served_model_names=("",))


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "NEEDS", ("json", "no_such_package"))
    with pytest.raises(ValueError, match=r"no-such-package.*extra 'serve'"):
        serve.check_extra()
