"""The server through OpenAI's own client, random requests out of its own schema, vLLM's load."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
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
openai = pytest.importorskip("openai")

from mini_vllm import LLM, EngineConfig, SamplingParams  # noqa: E402
from mini_vllm.config.engine import DEFAULT_MODEL  # noqa: E402
from tests.engine.helpers.server.server_helpers import (  # noqa: E402
    MODEL_NAME,
    ServerHere,
    serve_here,
    serve_there,
)

PROMPT = "The KV cache"
MESSAGES: list[Any] = [{"role": "user", "content": "What is a block?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerHere]:
    with serve_here(max_body_bytes=100_000) as running:
        yield running
        running.check_unharmed()


@pytest.fixture(scope="module")
def client(server: ServerHere) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def offline() -> LLM:
    return LLM()


# -- OpenAI's client ------------------------------------------------------------------------------


def test_models(client: Any) -> None:
    assert client.models.list().data[0].id == MODEL_NAME
    assert client.models.retrieve(MODEL_NAME).object == "model"


def test_a_completion_and_its_stream(client: Any, offline: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=30)
    (wanted,) = offline.generate(PROMPT, params, use_tqdm=False)
    given = {"model": MODEL_NAME, "prompt": PROMPT, "temperature": 0, "max_tokens": 30}
    whole = client.completions.create(**given)
    assert whole.choices[0].text == wanted.outputs[0].text
    assert whole.usage.completion_tokens == len(wanted.outputs[0].token_ids)
    chunks = list(client.completions.create(**given, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == wanted.outputs[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_chat_and_its_stream_with_usage(client: Any) -> None:
    given = {"model": MODEL_NAME, "messages": MESSAGES, "temperature": 0, "max_tokens": 30}
    whole = client.chat.completions.create(**given)
    assert whole.choices[0].message.role == "assistant"
    options = {"include_usage": True}
    *chunks, last = client.chat.completions.create(**given, stream=True, stream_options=options)
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert content == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert last.choices == []
    assert last.usage == whole.usage
    with client.chat.completions.stream(**given, stop="\u2603") as stream:
        for event in stream:  # the client's own accumulator
            if event.type == "content.delta":
                snapshot = event.snapshot
    assert snapshot == content


def test_n_samples_differ_and_are_seeded(client: Any, offline: LLM) -> None:
    params = SamplingParams(n=4, temperature=1.2, seed=7, max_tokens=12)
    (wanted,) = offline.generate(PROMPT, params, use_tqdm=False)
    texts = [output.text for output in wanted.outputs]
    given = {
        "model": MODEL_NAME, "prompt": PROMPT, "temperature": 1.2, "seed": 7, "n": 4, "max_tokens": 12,
    }  # fmt: skip
    assert [choice.text for choice in client.completions.create(**given).choices] == texts
    streamed = [""] * 4
    for chunk in client.completions.create(**given, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts
    assert len(set(texts)) > 1


def test_stop_ends_the_text_and_says_so(client: Any) -> None:
    given = {"model": MODEL_NAME, "messages": MESSAGES, "temperature": 0, "max_tokens": 60}
    text = client.chat.completions.create(**given).choices[0].message.content
    stop = text[5:8]
    cut = client.chat.completions.create(**given, stop=[stop, "never"]).choices[0]
    assert cut.message.content == text[: text.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.stop_reason == stop
    chunks = list(client.chat.completions.create(**given, stop=stop, stream=True))
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert content == cut.message.content
    assert chunks[-1].choices[0].finish_reason == "stop"
    kept = client.chat.completions.create(
        **given, stop=stop, extra_body={"include_stop_str_in_output": True}
    )
    assert kept.choices[0].message.content == text[: text.index(stop) + len(stop)]


def test_logprobs_of_completions(client: Any, offline: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=3)
    (wanted,) = offline.generate(PROMPT, params, use_tqdm=False)
    given = {
        "model": MODEL_NAME,
        "prompt": PROMPT,
        "temperature": 0,
        "max_tokens": 8,
        "logprobs": 3,
    }
    got = client.completions.create(**given).choices[0].logprobs
    expected = wanted.outputs[0].logprobs
    assert expected is not None
    assert "".join(got.tokens) == wanted.outputs[0].text
    assert got.text_offset == list(range(8))
    for place, position in enumerate(expected):
        own = next(iter(position.values()))
        assert got.token_logprobs[place] == pytest.approx(own.logprob, abs=1e-5)
        values = [p.logprob for p in position.values()]
        assert sorted(got.top_logprobs[place].values()) == pytest.approx(sorted(values), abs=1e-5)
    chunks = [c.choices[0].logprobs for c in client.completions.create(**given, stream=True)]
    assert [token for part in chunks for token in part.tokens] == got.tokens
    assert [offset for part in chunks for offset in part.text_offset] == got.text_offset
    named = client.completions.create(**given, extra_body={"return_tokens_as_token_ids": True})
    assert named.choices[0].logprobs.tokens == [
        f"token_id:{token_id}" for token_id in wanted.outputs[0].token_ids
    ]


def test_logprobs_of_chats(client: Any) -> None:
    given = {
        "model": MODEL_NAME, "messages": MESSAGES, "temperature": 0, "max_tokens": 6, "logprobs": True,
    }  # fmt: skip
    got = client.chat.completions.create(**given, top_logprobs=2).choices[0]
    entries = got.logprobs.content
    assert len(entries) == 6
    assert "".join(entry.token for entry in entries) == got.message.content
    for entry in entries:
        assert bytes(entry.bytes).decode() == entry.token
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob == entry.logprob, "greedy: the likeliest"
    none = client.chat.completions.create(**given).choices[0].logprobs.content
    assert [entry.top_logprobs for entry in none] == [[]] * 6
    chunks = client.chat.completions.create(**given, top_logprobs=2, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    streamed = [entry for part in parts if part for entry in part.content]
    assert streamed == entries


def test_vllms_parameters_as_extra_body(client: Any) -> None:
    extra = {"top_k": 1, "min_tokens": 5, "ignore_eos": True, "return_token_ids": True}
    given = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 5}
    choice = client.completions.create(**given, temperature=1, extra_body=extra).choices[0]
    greedy = client.completions.create(**given, temperature=0, extra_body=extra).choices[0]
    assert choice.token_ids == greedy.token_ids
    assert len(choice.token_ids) == 5


def test_the_error_classes(client: Any, server: ServerHere) -> None:
    def complete(**given: Any) -> Any:
        return client.completions.create(**{"model": MODEL_NAME, "prompt": PROMPT, **given})

    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="temperature must not be") as bad:
            complete(temperature=-1, stream=stream)
        assert bad.value.param == "temperature"
        assert bad.value.body["code"] == 400
        with pytest.raises(openai.NotFoundError, match="`gpt-9` does not exist"):
            complete(model="gpt-9", stream=stream)
    with pytest.raises(openai.BadRequestError, match="unknown role: pirate"):
        client.chat.completions.create(
            model=MODEL_NAME, messages=[{"role": "pirate", "content": "x"}]
        )
    with pytest.raises(openai.APIStatusError) as large:
        complete(prompt="x" * 200_000)
    assert large.value.status_code == 413
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL_NAME, input="x")
    server.check_unharmed()


def test_the_wrong_key_is_an_authentication_error() -> None:
    with serve_here(api_key="secret") as server:
        for key, right in (("wrong", False), ("secret", True)):
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                if right:
                    assert client.models.list().data
                else:
                    with pytest.raises(openai.AuthenticationError):
                        client.models.list()


def test_leaving_a_stream_frees_its_blocks(client: Any, server: ServerHere) -> None:
    stream = client.completions.create(
        model=MODEL_NAME,
        prompt=PROMPT,
        max_tokens=1000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    before = server.engine.engine_core.num_steps
    server.wait_idle()
    assert server.engine.engine_core.num_steps < before + 900


# -- random requests out of the schema ------------------------------------------------------------


LEFT_OUT = {
    "model", "tools", "tool_choice", "chat_template_kwargs", "continue_final_message",
}  # fmt: skip
"""Fields of the schema for which almost any value is refused: in valid requests, most would end there."""


def test_requests_out_of_the_schema_never_end_in_a_500() -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings

    statuses: dict[int, int] = {}

    def run(server: ServerHere, operation: Any, mode: Any, count: int) -> None:
        def check(case: Any) -> None:
            if isinstance(case.body, dict) and mode is schemathesis.GenerationMode.POSITIVE:
                for name in LEFT_OUT:
                    case.body.pop(name, None)
                for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
                    if name in case.body and len(case.body) % 2:
                        del case.body[name]  # its ids are random, few in the vocabulary
                for place, message in enumerate(case.body.get("messages") or []):
                    message["role"] = "assistant" if place % 2 else "user"
            response = case.call(timeout=PATIENCE)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
            assert response.status_code < 500, (response.text, case.body)
            if response.status_code >= 400:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}

        options = settings(
            max_examples=count, deadline=None, derandomize=True, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        options(given(operation.as_strategy(generation_mode=mode))(check))()

    with serve_here(EngineConfig(max_model_len=64), max_sequences=16) as server:
        document = server.send("/openapi.json").json
        wanted = {"/v1/completions", "/v1/chat/completions", "/v1/models/{name}", "/metrics"}
        wanted |= {"/tokenize", "/detokenize", "/v1/chat/completions/render"}
        assert wanted <= set(document["paths"])
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=server.url)
        for result in schema.get_all_operations():
            operation = result.ok()
            posts = bool(list(operation.body))
            run(server, operation, schemathesis.GenerationMode.POSITIVE, 60 if posts else 3)
            if posts:
                run(server, operation, schemathesis.GenerationMode.NEGATIVE, 50)
        print(f"{sum(statuses.values())} requests by status: {dict(sorted(statuses.items()))}")
        assert sum(statuses.values()) >= 600, statuses
        assert statuses[200] >= 30, statuses
        assert statuses[400] >= 80, statuses
        server.check_unharmed()


# -- vLLM's own load ------------------------------------------------------------------------------


# The command `vllm bench serve` without `vllm`'s own entry, which asks for the metadata of a package
# named vllm: its CPU build has another name.
BENCH_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.mark.vllm
def test_vllm_bench_serve_gets_every_answer(tmp_path: Path) -> None:
    with serve_there() as server:
        command = [
            sys.executable, "-c", BENCH_SERVE,
            "--backend", "openai", "--base-url", server.url, "--endpoint", "/v1/completions",
            "--model", MODEL_NAME, "--tokenizer", str(DEFAULT_MODEL), "--dataset-name", "random",
            "--random-input-len", "64", "--random-output-len", "32", "--num-prompts", "40",
            "--max-concurrency", "20", "--ignore-eos", "--disable-tqdm",
            "--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json",
        ]  # fmt: skip
        environment = {
            **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        result = json.loads((tmp_path / "result.json").read_text())
        assert result["completed"] == 40
        assert result["failed"] == 0
        assert result["total_output_tokens"] == 40 * 32
        assert re.search(r"Successful requests:\s+40", done.stdout)
