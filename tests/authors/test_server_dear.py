"""Requests that cost much, each within its limits or refused by them: no other request waits for one.

`/health` p99 is measured as in the attacks: in the processor time that the server takes before it answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

for package in (
    "fastapi",
    "uvicorn",
    "httptools",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
):
    pytest.importorskip(package)
if sys.platform != "linux":
    pytest.skip("reads /proc", allow_module_level=True)

from tests.engine.helpers.server.attack_helpers import Watch  # noqa: E402
from tests.engine.helpers.server.server_helpers import ServerThere, serve_there  # noqa: E402

MOST_SECONDS = 0.5
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGE = {"role": "user", "content": "x"}
PROMPT = {"prompt": "x", "max_tokens": 2, "temperature": 0}
ASKED = {"messages": [MESSAGE], "max_tokens": 2, "temperature": 0}
WORDS = "The KV cache "


def numbered(count: int, value: Any) -> dict[str, Any]:
    return {str(place): value for place in range(count)}


# path, body, status, a part of the refusal. Bodies are made when they are sent: some have 8 MB.
DEAR: dict[str, tuple[str, Callable[[], dict[str, Any]], int, str]] = {
    "60,000 bad words": (
        CHAT, lambda: ASKED | {"bad_words": [f"w{i}" for i in range(60_000)]}, 400, "at most 1024 entries"),
    "a bad word of 5 MB": (CHAT, lambda: ASKED | {"bad_words": [WORDS * 400_000]}, 400, "at most 1024 char"),
    "1024 bad words of 1 KB": (
        CHAT, lambda: ASKED | {"bad_words": [f"{i} " + "ab cd " * 160 for i in range(1024)]}, 200, ""),
    "beams 10 x 60": (
        TEXT, lambda: PROMPT | {"use_beam_search": True, "n": 10, "max_tokens": 60}, 200, ""),
    "tokenize 5 MB": ("/tokenize", lambda: {"prompt": WORDS * 400_000}, 200, ""),
    "tokenize 8 MB, one word": ("/tokenize", lambda: {"prompt": "x" * 8_000_000}, 200, ""),
    "tokenize 1 MB, strings": (
        "/tokenize", lambda: {"prompt": WORDS * 80_000, "return_token_strs": True}, 200, ""),
    "detokenize 1 M": ("/detokenize", lambda: {"tokens": [100] * 1_000_000}, 200, ""),
    "detokenize 1 M of none": ("/detokenize", lambda: {"tokens": ["x"] * 1_000_000}, 400, "got 'x'"),
    "logit_bias 600,000": (TEXT, lambda: PROMPT | {"logit_bias": numbered(600_000, 1)}, 400, "70000 keys"),
    "logit_bias 65,536": (
        TEXT, lambda: PROMPT | {"logit_bias": numbered(65_536, 1)}, 400, "outside the vocabulary"),
    "logit_bias of none": (
        TEXT, lambda: PROMPT | {"logit_bias": numbered(65_536, "x" * 90)}, 400, "must be a number"),
    "metadata 500,000": (TEXT, lambda: PROMPT | {"metadata": numbered(500_000, "x")}, 400, "70000 keys"),
    "metadata 69,000": (TEXT, lambda: PROMPT | {"metadata": numbered(69_000, "x")}, 200, ""),
    "variables 69,000": (
        CHAT, lambda: ASKED | {"chat_template_kwargs": numbered(69_000, "x")}, 200, ""),
    "floats 900,000": (TEXT, lambda: PROMPT | {"more": [1.5] * 900_000}, 200, ""),
    "stop 500,000": (TEXT, lambda: PROMPT | {"stop": ["q"] * 500_000}, 400, "at most 128"),
    "stop 128 x 60 KB": (TEXT, lambda: PROMPT | {"stop": [f"{i}" * 20_000 for i in range(128)]}, 200, ""),
    "stop_token_ids 1 M": (TEXT, lambda: PROMPT | {"stop_token_ids": [5] * 1_000_000}, 400, "65536"),
    "allowed_token_ids 65,536": (TEXT, lambda: PROMPT | {"allowed_token_ids": [5] * 65_536}, 200, ""),
    "prompt 5 MB": (TEXT, lambda: PROMPT | {"prompt": WORDS * 400_000}, 400, "maximum context length"),
    "prompt 1 M ids": (TEXT, lambda: PROMPT | {"prompt": [50] * 1_000_000}, 400, "maximum context length"),
    "1,024 prompts": (TEXT, lambda: PROMPT | {"prompt": [WORDS] * 1024}, 200, ""),
    "1,024 prompts of 99 ids": (
        TEXT, lambda: PROMPT | {"prompt": [[50 + i % 80] * 99 for i in range(1024)]}, 200, ""),
    "n 1,024": (TEXT, lambda: PROMPT | {"n": 1024, "temperature": 1}, 200, ""),
    "16,384 messages": (CHAT, lambda: ASKED | {"messages": [MESSAGE] * 16_384}, 400, "maximum context"),
    "30,000 messages": (CHAT, lambda: ASKED | {"messages": [MESSAGE] * 30_000}, 400, "at most 16384"),
    "30,000 parts": (
        CHAT, lambda: ASKED | {"messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}] * 30_000}]}, 400, "maximum context"),
    "23,000 tools": (
        CHAT, lambda: ASKED | {"tool_choice": "none", "tools": [
            {"type": "function", "function": {"name": "f"}}] * 23_000}, 200, ""),
    "xargs of 900,000": (CHAT, lambda: ASKED | {"vllm_xargs": {"a": [1.5] * 900_000}}, 400, "65536"),
    "xargs of 65,536": (CHAT, lambda: ASKED | {"vllm_xargs": numbered(65_536, 1)}, 400, "at most 1024"),
    "a model of 8 MB": (TEXT, lambda: PROMPT | {"model": "x" * 8_000_000}, 404, "does not exist"),
    "1.3 M quotes and commas": (TEXT, lambda: PROMPT | {"user": '",' * 1_300_000}, 200, ""),
    "logprobs 20 x 500": (
        TEXT, lambda: PROMPT | {"logprobs": 20, "max_tokens": 500, "ignore_eos": True}, 200, ""),
    "prompt_logprobs 20 x 10,000": (
        TEXT, lambda: PROMPT | {"prompt": [[50] * 900] * 12, "prompt_logprobs": 20}, 200, ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThere]:
    with serve_there() as running:
        yield running
        running.signal()
        assert running.wait() == 0
        assert running.log == ""


@pytest.mark.parametrize("name", DEAR)
def test_health_answers_beside_it(server: ServerThere, name: str) -> None:
    path, make, status, part = DEAR[name]
    body = json.dumps(make()).encode()
    watch = Watch(server)
    try:
        answer = server.send(path, body)
    finally:
        watch.close()
    assert answer.status == status, answer.body[:300]
    assert part in ("" if status == 200 else answer.error["message"])
    server.wait_idle()
    waits = sorted(watch.waits)
    p99 = waits[int(0.99 * len(waits))]
    print(f"{name}: {len(waits)} times, p99 {p99:.2f} s, at most {waits[-1]:.2f} s")
    assert p99 < MOST_SECONDS


def test_a_refusal_of_many_keys_names_the_bound(server: ServerThere) -> None:
    body = PROMPT | {"metadata": numbered(70_000, 1)}
    assert "may hold 70000 keys" in server.send(TEXT, body).error["message"]
    text = json.dumps(PROMPT | {"user": ":" * 200_000 + '\\"' * 70_000 + "\\\\"})
    assert server.send(TEXT, text.encode()).status == 200, "none of these is a key"
