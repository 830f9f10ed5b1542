"""Attacks on the server in its own process: memory stays small, `/health` answers, the log is silent."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
from collections.abc import Iterator
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

from tests.engine.helpers.server.attack_helpers import POST, connect, flood, read_all, withstands  # noqa: E402
from tests.engine.helpers.server.server_helpers import (  # noqa: E402
    Answer,
    ServerThere,
    open_request,
    serve_there,
)

MAX_CONNECTIONS = 300
LONG = {"prompt": "The KV cache", "max_tokens": 900, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThere]:
    with serve_there("--max-connections", str(MAX_CONNECTIONS)) as running:
        yield running
        running.signal()
        assert running.wait() == 0
        assert running.log == ""


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


# -- before there is a request --------------------------------------------------------------------

MIB = 2**20
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "block", "expected"),
    [
        (b"GET /", b"x" * 65536, 414),
        (GET + b"X-Value: ", b"x" * 65536, 431),
        (GET, b"x" * 65536, 431),
        (GET, b"X-Many: 1\r\n" * 6000, 431),
        (GET + b"\r\n" + GET + b"X-Value: ", b"x" * 65536, 200),  # and then 431
        (b"", b"\r\n" * 32768, 431),
        (b"", b"\x16\x03\x01" * 20000, 400),
        (CHUNKED + b"1;", b"x" * 65536, 431),
        (CHUNKED + b"1\r\n{\r\n0\r\nX-Trailer: ", b"x" * 65536, 431),
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"X-Many: 1\r\n" * 6000, 431),
        (CHUNKED, b"14\r\n%s\r\n" % (b" " * 20) * 3000, 413),
        (POST + b"Content-Length: 300000000\r\n\r\n", b" " * 65536, 413),
        (b"POST /nothing HTTP/1.1\r\nContent-Length: 300000000\r\n\r\n", b" " * 65536, 404),
    ],
)
def test_300_mb_of_what_never_becomes_a_request(
    server: ServerThere, start: bytes, block: bytes, expected: int
) -> None:
    with withstands(server):
        answer, sent = flood(server, start, block, 300 * MIB)
    assert status(answer) == expected
    if expected != 404:  # that one is read and thrown away, while the client's time lasts
        assert sent < 32 * MIB


def test_connections_that_say_nothing_give_way(server: ServerThere) -> None:
    """More than there may be: the oldest is told so and goes, and `/health` always finds a place."""
    with contextlib.ExitStack() as stack, withstands(server):
        socks = [stack.enter_context(connect(server)) for _ in range(MAX_CONNECTIONS + 100)]
        for place, sock in enumerate(socks[100:]):
            sock.sendall(GET[: place % len(GET)])
        assert status(read_all(socks[0])) == 503
        server.send("/health")


def test_many_requests_in_one_line(server: ServerThere) -> None:
    """Pipelined: a few are answered in order, more are not, and not even kept."""
    with withstands(server):
        with connect(server) as sock:
            sock.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" * 9)
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock).count(b"HTTP/1.1 200 OK") == 9
        line = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
        answer, sent = flood(server, b"", line, 300 * MIB)
        assert sent < 300 * MIB
        assert 1 <= answer.count(b"HTTP/1.1 200 OK") < 1000


# -- clients that leave ---------------------------------------------------------------------------


def request_bytes(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return POST + b"Content-Length: %d\r\n\r\n" % len(data) + data


def successes(server: ServerThere) -> float:
    return sum(v for k, v in server.metrics().items() if k.startswith("vllm:request_success"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("abruptly", [False, True])
def test_pipelined_requests_end_with_their_client(
    server: ServerThere, stream: bool, abruptly: bool
) -> None:
    before = successes(server)
    with withstands(server):
        for count in (1, 2, 5):
            with connect(server) as sock:
                sock.sendall(request_bytes(LONG | {"stream": stream}) * count)
                while not server.metrics()["vllm:num_requests_running"]:
                    pass
                if abruptly:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            server.wait_idle()
    assert successes(server) == before, "none ran to its end for nobody"


def test_who_has_said_all_still_gets_an_answer(server: ServerThere) -> None:
    """`shutdown(SHUT_WR)` right behind the request, as `nc -N` does it."""
    with withstands(server):
        for data in (GET + b"\r\n", request_bytes(LONG), request_bytes(LONG | {"stream": True})):
            with connect(server) as sock:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                answer = read_all(sock).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
            assert status(answer) == 200
            assert data == GET + b"\r\n" or b'"finish_reason":"length"' in answer


@pytest.mark.parametrize("part", [b"", b"{", GET[:9], request_bytes(LONG)[:-3]])
def test_who_leaves_half_way_is_forgotten(server: ServerThere, part: bytes) -> None:
    with withstands(server):
        for _ in range(20):
            with connect(server) as sock:
                sock.sendall(part)
        with connect(server) as sock:
            sock.sendall(request_bytes(LONG) + part)


def test_garbage_behind_a_request_does_not_spoil_its_answer(server: ServerThere) -> None:
    with withstands(server), connect(server) as sock:
        sock.sendall(request_bytes(LONG | {"max_tokens": 50}) + b"\x00garbage\r\n\r\n")
        answer = read_all(sock)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert json.loads(body)["usage"]["completion_tokens"] == 50


# -- requests that ask for too much ---------------------------------------------------------------


def test_an_answer_has_a_largest_size(server: ServerThere) -> None:
    """120 bytes once brought 52 MB of answer and 681 MiB of memory."""
    asked = {"prompt": "x", "n": 1024, "logprobs": 20, "max_tokens": 100, "temperature": 1}
    with withstands(server):
        for stream in (False, True):
            error = server.complete(**asked, stream=stream).error
            for value in ("n=1024", "max_tokens=100", "logprobs=20", "2150400", "262144"):
                assert value in error["message"]
            assert error["param"] == "n"
        for more in (
            {"n": 1, "prompt": ["x"] * 1024},
            {"n": 1, "prompt": ["x" * 500] * 40, "prompt_logprobs": 20, "max_tokens": 1},
            {"n": 900, "prompt": "x" * 500, "echo": True, "logprobs": None, "max_tokens": 1},
        ):
            assert "262144" in server.complete(**asked | more).error["message"]
        chat = server.chat(
            "x", n=1024, logprobs=True, top_logprobs=20, max_tokens=100, temperature=1
        )
        assert "2150400" in chat.error["message"]


def test_the_largest_answer_comes_in_pieces(server: ServerThere) -> None:
    """Up to the limit, and nobody notices."""
    with withstands(server):
        answer = server.complete(
            prompt="x", n=124, logprobs=20, max_tokens=100, temperature=1, seed=1, ignore_eos=True
        )
        assert answer.status == 200
        choices = answer.json["choices"]
    assert [choice["index"] for choice in choices] == list(range(124))
    assert all(len(choice["logprobs"]["top_logprobs"]) == 100 for choice in choices)


def test_bodies_of_8_mb(server: ServerThere) -> None:
    """The longest there may be. What is too long is told before it is tokenized or looked at."""
    most = 8 * MIB - 100
    text = "x" * (most - 100)
    bodies: list[tuple[str, str, int]] = [
        (f'{{"prompt": "{text}"}}', "characters", 400),
        (f'{{"prompt": "{text}", "truncate_prompt_tokens": 5, "max_tokens": 1}}', "", 200),
        (f'{{"prompt": ["{text}", "x"], "max_tokens": 1}}', "characters", 400),
        (f'{{"prompt": [{"1," * (most // 2 - 10)} 1]}}', "1048576 values", 400),
        (f'{{"prompt": [{"1," * (2**20 - 9)} 1]}}', "1048568 input tokens", 400),
        (f'{{"prompt": [{"1," * (2**20 - 9)} 1], "truncate_prompt_tokens": 5}}', "", 200),
        (f"""{{"prompt": [{'"x",' * (2**20 - 9)} "x"]}}""", "sequences", 400),
        (f'{{"prompt": [{"[]," * (most // 3 - 10)} []]}}', "1048576 values", 400),
        (f'{{"prompt": "x", "user": [{"[1]," * 130_000} 1]}}', "user", 400),
        (f"""{{"prompt": "x", "user": [{'{"":1e9},' * 130_000} 1]}}""", "70000 keys", 400),
        (f"""{{"prompt": "x", "user": [{'{"":1e9},' * 60_000} 1]}}""", "user", 400),
        ("[" * 7 * MIB, "131072 containers", 400),
        (f"""{{"prompt": "x", "stop": [{'"",' * (2**20 - 9)} 1]}}""", "at most 128", 400),
        (f"""{{"prompt": "{"[,{" * (most // 3 - 90)}"}}""", "characters", 400),
    ]
    with withstands(server):
        for body, part, expected in bodies:
            answer = server.send("/v1/completions", body.encode())
            assert answer.status == expected, answer.body[:300]
            if part:
                assert part in answer.error["message"]
        message = f'{{"messages": [{{"role": "user", "content": "{text}"}}]}}'
        assert server.send("/v1/chat/completions", message.encode()).status == 400


def test_a_body_of_9_mb_is_answered_and_not_reset(server: ServerThere) -> None:
    with withstands(server):
        for _ in range(3):
            assert server.send("/v1/completions", b" " * 9_000_000).status == 413


def test_many_bodies_at_once(server: ServerThere) -> None:
    """Each within the limit, none complete: the server takes a few, and the others wait."""
    with withstands(server), contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(server)) for _ in range(60)]
        for sock in socks:
            sock.sendall(POST + b"Content-Length: 8000000\r\n\r\n")
            sock.setblocking(False)
        block = b" " * 2**18
        for _ in range(31):
            for sock in socks:
                with contextlib.suppress(BlockingIOError):
                    sock.send(block)
        assert server.complete(prompt="x", max_tokens=2).status == 200, "small ones need not wait"


MANY = 60_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", ["x" * 60_000] * 120 + [""]),
        ("stop_token_ids", [5] * 10 + list(range(10**9, 10**9 + MANY))),
        ("stop_token_ids", ["x" * 100] * MANY),
        ("allowed_token_ids", list(range(10**30, 10**30 + MANY))),
        ("logit_bias", {str(10**9 + i): 1 for i in range(MANY)}),
        ("logit_bias", dict.fromkeys(map(str, range(MANY)), "x" * 90)),
        ("logit_bias", {"x" * 6_000_000: 1}),
        ("logit_bias", {"1" * 4000: 1}),
        ("cache_salt", ["x" * 6_000_000]),
        ("model", "x" * 6_000_000),
        ("user", ["x" * 90] * MANY),
        ("prompt", [["x" * 6_000_000]]),
        ("response_format", {"type": "x" * 6_000_000}),
        ("messages", ["x" * 90] * MANY),
        ("messages", [{"role": "x" * 6_000_000, "content": "x"}]),
        ("tool_choice", "x" * 6_000_000),
    ],
)
def test_an_error_does_not_repeat_what_was_sent(
    server: ServerThere, field: str, value: Any
) -> None:
    chat = field in ("messages", "tool_choice")
    body = {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    with withstands(server):
        answer = server.send(f"/v1/{'chat/' * chat}completions", {**body, field: value})
        assert answer.status in (400, 404), answer.body[:300]
        assert len(answer.body) < 600
        assert answer.error["message"]


# -- what is no text ------------------------------------------------------------------------------


def surrogates() -> Iterator[bytes]:
    """Halves of surrogate pairs, written out and in the bytes of each encoding."""
    for field in ("prompt", "cache_salt", "stop", "user"):
        fields = {"prompt": "x" * 40, "max_tokens": 20} | {field: "a\ud800b"}
        yield json.dumps(fields).encode()
        for encoding in ("utf-8", "utf-16", "utf-16-be", "utf-32", "utf-32-le"):
            text = json.dumps(fields, ensure_ascii=False)
            yield text.encode(encoding, "surrogatepass")


def test_half_a_character_harms_nobody(server: ServerThere) -> None:
    """In `cache_salt` it once killed the engine, with every stream that ran."""
    with withstands(server):
        innocent = open_request(server, LONG | {"stream": True})
        for body in surrogates():
            answer: Answer = server.send("/v1/completions", body)
            assert answer.status == 400, body
        received = b""
        while b"[DONE]" not in received:
            part = innocent.recv(65536)
            assert part
            received += part
        innocent.close()
    assert b'"finish_reason":"length"' in received
    for encoding in ("utf-8-sig", "utf-16", "utf-32-be"):
        body = '{"prompt": "\u2603", "max_tokens": 1, "cache_salt": "\u2603"}'.encode(encoding)
        assert server.send("/v1/completions", body).status == 200, "whole characters pass"


# -- everything at once ---------------------------------------------------------------------------


def test_all_of_them_in_no_order(server: ServerThere) -> None:
    """A crowd in which everybody misbehaves in a way of their own, drawn from a seed."""
    rng = random.Random(6)
    good = request_bytes(LONG | {"max_tokens": 20, "stream": True})
    with contextlib.ExitStack() as stack, withstands(server):
        for _ in range(200):
            sock = stack.enter_context(connect(server))
            data = rng.choice((good, GET, b"", good * 3, good[:-5], b"\x00\x01", good + b"\x00"))
            sock.sendall(data)
            if rng.random() < 0.3:
                sock.shutdown(socket.SHUT_WR)
            if rng.random() < 0.5:
                sock.close()
        assert server.complete(prompt="x", max_tokens=2).status == 200
