"""The server by hand, over a socket: answers equal the engine's, clients that leave, the signals."""

from __future__ import annotations

import json
import socket
import threading
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

from mini_vllm import LLM, EngineConfig, SamplingParams  # noqa: E402
from tests.engine.helpers.server.server_helpers import (  # noqa: E402
    MODEL_NAME,
    Answer,
    ServerHere,
    open_request,
    probe_early,
    serve_here,
)

PROMPT = "The KV cache"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerHere]:
    with serve_here() as running:
        yield running


@pytest.fixture(scope="module")
def offline() -> LLM:
    return LLM()


def text_of(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    text: str = answer.json["choices"][0]["text"]
    return text


# -- what it answers ------------------------------------------------------------------------------


def test_a_completion_equals_the_offline_one(server: ServerHere, offline: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40)
    (wanted,) = offline.generate(PROMPT, params, use_tqdm=False)
    answer = server.complete(prompt=PROMPT, max_tokens=40)
    choice = answer.json["choices"][0]
    assert choice["text"] == wanted.outputs[0].text
    assert choice["finish_reason"] == wanted.outputs[0].finish_reason
    assert answer.json["object"] == "text_completion"
    assert answer.json["model"] == MODEL_NAME
    generated = len(wanted.outputs[0].token_ids)
    assert answer.json["usage"] == {
        "prompt_tokens": 13,
        "completion_tokens": generated,
        "total_tokens": 13 + generated,
        "prompt_tokens_details": None,
    }


def test_a_stream_joins_to_the_whole(server: ServerHere) -> None:
    whole = text_of(server.complete(prompt=PROMPT, max_tokens=40))
    options = {"include_usage": True}
    answer = server.complete(prompt=PROMPT, max_tokens=40, stream=True, stream_options=options)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, usage = answer.events
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[:-1] == [None] * (len(chunks) - 1)
    assert reasons[-1] in ("length", "stop")
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 13
    assert len({chunk["id"] for chunk in answer.events}) == 1


def test_continuous_usage_counts_up(server: ServerHere) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = server.complete(prompt=PROMPT, max_tokens=9, stream=True, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in answer.events]
    assert counts == sorted(counts)
    assert counts[-1] == 9


def test_prompts_in_every_form_are_the_same_prompt(server: ServerHere) -> None:
    tokenizer = server.engine.tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(PROMPT)
    whole = text_of(server.complete(prompt=PROMPT))
    assert text_of(server.complete(prompt=ids)) == whole
    for many in ([PROMPT, "A block"], [ids, tokenizer.encode("A block")]):
        answer = server.complete(prompt=many).json
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert answer["choices"][0]["text"] == whole
        assert answer["usage"]["prompt_tokens"] == 13 + 8
    bare = server.complete(prompt=PROMPT, add_special_tokens=False, return_token_ids=True).json
    assert bare["choices"][0]["prompt_token_ids"] == ids[1:]


def test_many_prompts_with_n_stream_by_index(server: ServerHere) -> None:
    body = {"prompt": [PROMPT, "A block"], "n": 3, "temperature": 1, "seed": 5, "max_tokens": 6}
    whole = server.send("/v1/completions", body).json["choices"]
    texts = dict.fromkeys(range(6), "")
    for chunk in server.send("/v1/completions", {**body, "stream": True}).events:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {choice["index"]: choice["text"] for choice in whole}
    assert len(set(texts.values())) > 2, "the samples do not differ: the test sees nothing"


def test_echo_puts_the_prompt_before_the_text(server: ServerHere) -> None:
    whole = text_of(server.complete(prompt=PROMPT, max_tokens=5))
    assert text_of(server.complete(prompt=PROMPT, max_tokens=5, echo=True)) == PROMPT + whole
    assert text_of(server.complete(prompt=PROMPT, max_tokens=0, echo=True)) == PROMPT
    answer = server.complete(prompt=PROMPT, max_tokens=5, echo=True, logprobs=1)
    logprobs = answer.json["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == 13 + 5
    assert logprobs["token_logprobs"][0] is None
    assert "".join(logprobs["tokens"]) == "<bos>" + PROMPT + whole
    stream = server.complete(prompt=PROMPT, max_tokens=5, echo=True, logprobs=1, stream=True)
    chunks = [chunk["choices"][0] for chunk in stream.events]
    assert "".join(chunk["text"] for chunk in chunks) == PROMPT + whole
    tokens = [token for chunk in chunks for token in chunk["logprobs"]["tokens"]]
    assert tokens == logprobs["tokens"]


def test_vllms_own_parameters_reach_the_engine(server: ServerHere) -> None:
    body = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    ids = server.complete(**body).json["choices"][0]["token_ids"]
    assert len(ids) == 12
    stop = server.complete(**body, stop_token_ids=[ids[4]]).json["choices"][0]
    assert stop["token_ids"] == ids[: ids.index(ids[4]) + 1]
    assert (stop["finish_reason"], stop["stop_reason"]) == ("stop", ids[4])
    only = server.complete(**body, allowed_token_ids=[70]).json["choices"][0]
    assert only["token_ids"] == [70] * 12
    biased = server.complete(**body, logit_bias={"71": 100}).json["choices"][0]
    assert biased["token_ids"] == [71] * 12
    cut = server.complete(**body, truncate_prompt_tokens=4).json["choices"][0]
    assert len(cut["prompt_token_ids"]) == 4
    hot = {**body, "temperature": 1.5, "seed": 3}
    sampled = server.send("/v1/completions", hot).json["choices"][0]["token_ids"]
    assert server.send("/v1/completions", hot).json["choices"][0]["token_ids"] == sampled
    assert (
        server.send("/v1/completions", {**hot, "top_k": 1}).json["choices"][0]["token_ids"] == ids
    )


def test_prompt_logprobs_and_ids_come_when_asked_for(server: ServerHere, offline: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2)
    (wanted,) = offline.generate(PROMPT, params, use_tqdm=False)
    got = server.complete(prompt=PROMPT, max_tokens=1, prompt_logprobs=2).json["choices"][0]
    assert wanted.prompt_logprobs is not None
    assert got["prompt_logprobs"][0] is None
    for position, expected in zip(
        got["prompt_logprobs"][1:], wanted.prompt_logprobs[1:], strict=True
    ):
        assert expected is not None
        assert set(position) == {str(token_id) for token_id in expected}
        for token_id, logprob in expected.items():
            assert position[str(token_id)]["rank"] == logprob.rank
            assert position[str(token_id)]["logprob"] == pytest.approx(logprob.logprob, abs=1e-5)


def test_the_models_it_serves(server: ServerHere) -> None:
    listed = server.send("/v1/models").json
    assert listed["object"] == "list"
    assert listed["data"][0]["id"] == MODEL_NAME
    assert listed["data"][0]["max_model_len"] == 1024
    assert server.send(f"/v1/models/{MODEL_NAME}").json["id"] == MODEL_NAME
    assert server.send("/v1/models/other").error["type"] == "NotFoundError"
    assert server.complete(prompt="x", max_tokens=1, model=MODEL_NAME).status == 200
    with serve_here(served_model_names=("a/b", "c")) as named:
        assert [card["id"] for card in named.send("/v1/models").json["data"]] == ["a/b", "c"]
        assert named.send("/v1/models/a/b").json["id"] == "a/b"
        assert named.complete(prompt="x", max_tokens=1, model="c").json["model"] == "a/b"
        assert named.complete(prompt="x", max_tokens=1, model=MODEL_NAME).status == 404


def test_request_ids_are_the_clients_and_need_not_be_unique(server: ServerHere) -> None:
    body = {"prompt": PROMPT, "max_tokens": 60, "request_id": "mine", "ignore_eos": True}
    first = open_request(server, {**body, "stream": True})
    first.recv(100)
    assert server.complete(**{**body, "max_tokens": 2}).json["id"] == "cmpl-mine"
    headers = {"X-Request-Id": "header"}
    answer = server.send("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=headers)
    assert answer.json["id"] == "cmpl-header"
    first.close()
    server.wait_idle()


# -- the chat -------------------------------------------------------------------------------------


def test_a_chat_goes_through_the_checkpoints_template(server: ServerHere, offline: LLM) -> None:
    tokenizer = offline.get_tokenizer()
    text = "<bos><|system|>Be short<|user|>What is a block?<|assistant|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    params = SamplingParams(temperature=0, max_tokens=24)
    (wanted,) = offline.generate({"prompt_token_ids": ids}, params, use_tqdm=False)
    messages = [
        {"role": "system", "content": "Be short"},
        {"role": "user", "content": [{"type": "text", "text": "What is a block?"}]},
    ]
    body = {
        "messages": messages, "temperature": 0, "max_completion_tokens": 24,
        "return_token_ids": True, "return_prompt_text": True,
    }  # fmt: skip
    answer = server.send("/v1/chat/completions", body).json
    assert answer["prompt_text"] == text
    assert answer["prompt_token_ids"] == ids
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == wanted.outputs[0].text
    assert choice["token_ids"] == wanted.outputs[0].token_ids
    chunks = server.send("/v1/chat/completions", {**body, "stream": True}).events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas) == wanted.outputs[0].text
    assert chunks[-1]["choices"][0]["finish_reason"] == wanted.outputs[0].finish_reason


def test_the_last_message_can_be_continued_and_echoed(server: ServerHere) -> None:
    answer = server.chat(
        "What is a block?", "A block is", max_tokens=4, continue_final_message=True,
        add_generation_prompt=False, return_prompt_text=True, echo=True,
    )  # fmt: skip
    assert answer.json["prompt_text"].endswith("<|assistant|>A block is")
    message = answer.json["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert message["content"].startswith("A block is")
    assert len(message["content"]) > len("A block is")
    stream = server.chat(
        "What is a block?", "A block is", max_tokens=4, continue_final_message=True,
        add_generation_prompt=False, echo=True, stream=True,
    )  # fmt: skip
    parts = [chunk["choices"][0]["delta"]["content"] for chunk in stream.events]
    assert "".join(parts) == message["content"]


def test_a_chat_without_a_limit_may_fill_the_model() -> None:
    with serve_here(EngineConfig(max_model_len=128)) as short:
        answer = short.chat("Hello", ignore_eos=True)
    usage = answer.json["usage"]
    assert usage["total_tokens"] == 128
    assert answer.json["choices"][0]["finish_reason"] == "length"


def test_cached_prompt_tokens_are_told_when_the_server_is_told_to() -> None:
    with serve_here(enable_prompt_tokens_details=True) as server:
        prompt = "x" * 40  # 41 tokens: two full blocks of 16
        server.complete(prompt=prompt, max_tokens=1)
        usage = server.complete(prompt=prompt, max_tokens=1).json["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 32}
        options = {"include_usage": True}
        body = {"prompt": prompt, "max_tokens": 1, "stream": True, "stream_options": options}
        assert server.complete(**body).events[-1]["usage"]["prompt_tokens_details"] == {
            "cached_tokens": 32
        }


# -- clients that leave ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(
    server: ServerHere, path: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe_early(monkeypatch)
    server.wait_idle()
    body: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True, "stream": stream, "n": 2}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": "Hello"}]
    else:
        body["prompt"] = [PROMPT, "A block"]
    before = server.engine.engine_core.num_steps
    sock = open_request(server, body, path)
    server.wait_until(lambda: server.engine.engine_core.num_steps > before + 5, "it runs")
    assert server.engine.has_unfinished_requests()
    sock.close()
    server.wait_idle()
    assert server.engine.engine_core.num_steps < before + 890, "it ran to its end"


def test_a_client_that_leaves_while_it_waits_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    probe_early(monkeypatch)
    with serve_here(EngineConfig(max_num_seqs=1)) as server:
        body = {"prompt": PROMPT, "max_tokens": 800, "ignore_eos": True, "stream": True}
        running, waiting = open_request(server, body), open_request(server, body)
        scheduler = server.engine.engine_core.scheduler
        server.wait_until(lambda: len(scheduler.waiting) == 1, "one waits")
        waiting.close()
        server.wait_until(lambda: len(scheduler.waiting) == 0, "it is gone")
        assert len(scheduler.running) == 1
        running.close()
        server.wait_idle()
        assert server.metrics()["vllm:request_params_n_count"] == 0
        assert not server_metrics_left(server)


def server_metrics_left(server: ServerHere) -> int:
    """Requests that the metrics still know of, found through the observer of steps."""
    observers = server.engine.engine_core.step_observers
    (metrics,) = {getattr(o, "__self__", None) for o in observers if o.__name__ == "observe_step"}
    assert metrics is not None
    return len(metrics.sequences)


def test_a_client_that_reads_slowly_gets_everything(server: ServerHere) -> None:
    body = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "temperature": 0}
    whole = text_of(server.send("/v1/completions", body))
    sock = open_request(server, {**body, "stream": True})
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    received = b""
    while b"[DONE]" not in received:
        received += sock.recv(512)
        time.sleep(0.0002)
    sock.close()
    lines = [line for line in received.split(b"\r\n") if line.startswith(b"data: {")]
    events = [json.loads(event[6:]) for line in lines for event in line.strip().split(b"\n\n")]
    assert "".join(event["choices"][0]["text"] for event in events) == whole
    server.wait_idle()


def test_many_clients_at_once_all_get_what_they_would_get_alone(
    server: ServerHere, offline: LLM
) -> None:
    prompts = [f"Request {number} asks" for number in range(24)]
    params = SamplingParams(temperature=0, max_tokens=20)
    wanted = [o.outputs[0].text for o in offline.generate(prompts, params, use_tqdm=False)]
    got: dict[int, str] = {}

    def ask(number: int) -> None:
        stream = bool(number % 2)
        answer = server.complete(prompt=prompts[number], max_tokens=20, stream=stream)
        chunks = answer.events if stream else [answer.json]
        got[number] = "".join(chunk["choices"][0]["text"] for chunk in chunks)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [got[number] for number in range(24)] == wanted
    server.wait_idle()
