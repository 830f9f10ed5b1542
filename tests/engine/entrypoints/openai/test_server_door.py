"""The server's limits, its settings small and its engine within reach."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.helpers.patience import PATIENCE

for package in (
    "fastapi",
    "uvicorn",
    "httptools",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "jinja2",
):
    pytest.importorskip(package)

from mini_vllm.engine.async_llm import AsyncLLM  # noqa: E402
from mini_vllm.engine.step_record import StepRecord  # noqa: E402
from mini_vllm.entrypoints.openai import run  # noqa: E402
from mini_vllm.entrypoints.openai.app import build_app  # noqa: E402
from mini_vllm.entrypoints.openai.prompts import PromptReader  # noqa: E402
from mini_vllm.entrypoints.openai.protocol import CompletionRequest  # noqa: E402
from mini_vllm.entrypoints.openai.settings import ServerSettings  # noqa: E402
from mini_vllm.tokenizer import Tokenizer  # noqa: E402
from tests.engine.helpers.engine.text_helpers import write_checkpoint  # noqa: E402
from tests.engine.helpers.server.server_helpers import (  # noqa: E402
    ServerHere,
    open_request,
    probe_early,
    serve_here,
)

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
LONG: dict[str, Any] = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "temperature": 0}


def connect(server: ServerHere) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


def read_all(sock: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(65536):
            received += part
    return received


# -- time -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient() -> Iterator[ServerHere]:
    """A server that waits for a client for 0.2 seconds."""
    with serve_here(client_timeout=0.2) as server:
        yield server


@pytest.mark.parametrize(
    "start",
    [b"", b"\r\n", b"GET", GET, POST + b"Content-Length: 9\r\n\r\n{", GET + b"\r\n" + GET],
)
def test_a_request_must_come_in_time(start: bytes, impatient: ServerHere) -> None:
    with connect(impatient) as sock:
        sock.sendall(start)
        answer = read_all(sock)
    assert b"HTTP/1.1 408 Request Timeout" in answer
    assert b"not complete within 0.2 seconds" in answer
    impatient.check_unharmed()


def test_a_request_that_takes_long_is_not_late() -> None:
    """The clock is for the client. The server may take its time."""

    def dawdle(record: StepRecord) -> None:
        if record.index < 5:
            threading.Event().wait(0.1)

    with serve_here(llm=AsyncLLM(stats=dawdle), client_timeout=0.2) as server:
        asked = server.in_time(lambda: server.complete(prompt="x", max_tokens=8, ignore_eos=True))
        assert asked.status == 200


def test_who_does_not_read_is_dropped(impatient: ServerHere) -> None:
    """An answer that fills the connection, to a client that looks away."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", impatient.port))
    line = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    with sock, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        sock.settimeout(20)
        for _ in range(100_000):
            sock.sendall(line)
        pytest.fail("the server took 100,000 requests and kept as many answers")
    impatient.check_unharmed()


# -- connections ----------------------------------------------------------------------------------


def test_the_oldest_that_only_waits_gives_way() -> None:
    with serve_here(max_connections=3) as server, contextlib.ExitStack() as stack:
        busy = stack.enter_context(open_request(server, LONG | {"stream": True}))
        busy.recv(64)
        first, second = (stack.enter_context(connect(server)) for _ in range(2))
        assert server.send("/health").status == 200
        assert b"HTTP/1.1 503" in read_all(first)
        second.sendall(GET + b"Connection: close\r\n\r\n")
        assert b"HTTP/1.1 200 OK" in read_all(second), "the younger one was left alone"
        assert b"HTTP/1.1 503" not in busy.recv(65536), "and the busy one too"


def test_where_all_are_busy_a_new_one_may_ask_for_health_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe_early(monkeypatch)
    gate = threading.Event()

    def hold(record: StepRecord) -> None:
        assert gate.wait(PATIENCE)

    with serve_here(llm=AsyncLLM(stats=hold), max_connections=2) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(open_request(server, LONG))
            scheduler = server.engine.engine_core.scheduler
            thread = server.llm._thread
            arrived = lambda: len(scheduler.requests) + len(thread._commands)  # noqa: E731
            server.wait_until(lambda: arrived() == 2, "both came")
            for _ in range(3):
                assert server.send("/health").status == 200
                assert server.send("/metrics").status == 200
                with connect(server) as sock:
                    sock.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
                    assert b"this server has 2 connections open" in read_all(sock)
            gate.set()
        server.check_unharmed()


def test_who_wants_another_protocol_gets_this_one() -> None:
    with serve_here() as server, connect(server) as sock:
        sock.sendall(GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x01x")
        answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in answer
        server.check_unharmed()


def test_the_system_may_allow_fewer_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resource = pytest.importorskip("resource")
    llm = AsyncLLM()
    try:
        app = build_app(llm, ServerSettings())
    finally:
        llm.shutdown()
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (50, 100))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(limits))
    assert run.raise_open_files_limit(40) == 40
    assert run.raise_open_files_limit(80) == 80
    assert run.raise_open_files_limit(200) == 100
    assert asked == [(80, 100), (100, 100)]
    config = run.make_config(app, "critical")
    assert config.http.keywords["limits"].settings.max_connections == 36  # type: ignore[union-attr]
    assert "max_connections=512 is lowered to 36" in caplog.text


# -- an engine that dies, and one that hangs ------------------------------------------------------


def test_a_death_is_logged_once_and_told_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    def die(record: StepRecord) -> None:
        if record.index == 30:
            raise RuntimeError("planted\nin two lines, of which " + "the second is long " * 1000)

    with serve_here(llm=AsyncLLM(stats=die)) as server, contextlib.ExitStack() as stack:
        stream = {**LONG, "stream": True}
        socks = [stack.enter_context(open_request(server, stream)) for _ in range(20)]
        for sock in socks:
            received = b""
            while b"[DONE]" not in received:
                part = sock.recv(65536)
                assert part
                received += part
            error = next(e for e in received.split(b"\n\n") if b'"error"' in e)
            assert b"the engine died in a step: RuntimeError('planted" in error
            assert b"Traceback" not in error
            assert len(error) < 450
        health = server.send("/health")
        assert health.status == 503
        assert "planted" in health.error["message"]
        assert server.complete(prompt="x").status == 500
    traced = [record for record in caplog.records if record.exc_info]
    assert len(traced) == 1
    assert traced[0].name == "mini_vllm.engine"
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == traced


def test_a_step_that_hangs_turns_health_red(monkeypatch: pytest.MonkeyPatch) -> None:
    probe_early(monkeypatch)
    gate = threading.Event()

    def hang(record: StepRecord) -> None:
        if record.index == 3:
            assert gate.wait(PATIENCE)

    llm = AsyncLLM(stats=hang)
    with serve_here(llm=llm, step_timeout=0.3) as server:
        assert llm.step_seconds == 0
        with open_request(server, LONG):
            server.wait_until(lambda: server.send("/health").status == 503, "/health is red")
            assert "longer than step_timeout=0.3" in server.send("/ping").error["message"]
            gate.set()
            server.wait_until(lambda: server.send("/health").status == 200, "and green again")
        server.check_unharmed()
        server.wait_until(lambda: llm.step_seconds == 0, "it sleeps")


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max_header_bytes", "max_connections", "max_output_values"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "1"])
def test_counts_are_counts(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1"):
        ServerSettings(**{name: value})


@pytest.mark.parametrize("name", ["client_timeout", "step_timeout"])
@pytest.mark.parametrize("value", [0, -1, True, math.inf, math.nan, "1", None])
def test_times_are_times(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a number of seconds above 0"):
        ServerSettings(**{name: value})


def test_the_limit_on_values_counts_what_the_answer_holds() -> None:
    with serve_here(max_output_values=100) as server:
        for fits in (
            {"max_tokens": 100},
            {"max_tokens": 25, "n": 4, "temperature": 1},
            {"max_tokens": 20, "logprobs": 4},
            {"max_tokens": 1, "prompt": [[1] * 9] * 3, "prompt_logprobs": 2},
            {"max_tokens": 91, "prompt": [1] * 9, "echo": True},
        ):
            assert server.complete(**{"prompt": "x", **fits}).status == 200, fits
        for exceeds, param in (
            ({"max_tokens": 101}, "max_tokens"),
            ({"max_tokens": 26, "n": 4, "temperature": 1}, "n"),
            ({"max_tokens": 21, "logprobs": 4}, "logprobs"),
            ({"max_tokens": 7, "prompt": [[1] * 9] * 3, "prompt_logprobs": 2}, "max_tokens"),
            ({"max_tokens": 92, "prompt": [1] * 9, "echo": True}, "max_tokens"),
        ):
            error = server.complete(**{"prompt": "x", **exceeds}).error
            assert "more than this server's limit of 100" in error["message"]
            assert error["param"] == param
        server.check_unharmed()


# -- answers and prompts, put together from pieces ------------------------------------------------


def test_a_name_that_looks_like_the_place_of_the_list() -> None:
    with serve_here(served_model_names=('"choices":[]',)) as server:
        for answer in (server.complete(prompt="x", max_tokens=2), server.chat("x", max_tokens=2)):
            assert answer.json["model"] == '"choices":[]'
            assert len(answer.json["choices"]) == 1


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("keep", [1, 2, 7, 50])
def test_a_text_cut_before_it_is_tokenized_has_the_same_tokens(
    tmp_path: Path, side: str | None, keep: int
) -> None:
    tokenizer = Tokenizer.from_folder(write_checkpoint(tmp_path / "model"))
    reader = PromptReader(tokenizer, 300, 100)
    rng = random.Random(keep)
    words = ["the", "cache", "hello", "a", "\u2603", "\U0001f600", "\n\n", "don't", "123", ",", "é"]
    for length in (1, 10, 100, 3000):
        text = " ".join(rng.choice(words) for _ in range(length))
        body = CompletionRequest(truncate_prompt_tokens=keep, truncation_side=side)
        got = reader.to_engine_prompt(text, body, 1, True)["prompt_token_ids"]
        whole = tokenizer.encode(text, True)
        # No side asked for: the tokenizer cuts, and keeps its <bos>, as vLLM's does.
        head = whole[:1] if side is None else []
        last = whole[len(head) :][max(len(whole) - keep, 0) :]
        assert got == (whole[:keep] if side == "right" else head + last)
    assert reader.max_chars_per_token * 2 * keep < len(text), "the last one was cut"
