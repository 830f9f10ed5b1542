"""A real server for tests: uvicorn on a free port, in a thread here or in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.config.engine import EngineConfig
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.entrypoints.openai.run import bind
from mini_vllm.entrypoints.openai.serving import Serving
from mini_vllm.entrypoints.openai.settings import ServerSettings
from tests.engine.helpers.patience import PATIENCE

MODEL_NAME = "tiny-llama"


@dataclass
class Answer:
    """A whole response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error, its shape checked."""
        content = self.json
        assert set(content) == {"error"}, content
        error: dict[str, Any] = content["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["code"] == self.status
        assert error["message"]
        assert error["type"]
        return error

    @property
    def events(self) -> list[Any]:
        """The server-sent events, `[DONE]` checked and left out."""
        parts = self.body.decode().split("\n\n")
        assert parts[-2:] == ["data: [DONE]", ""], parts[-3:]
        assert all(part.startswith("data: ") for part in parts[:-1])
        return [json.loads(part[6:]) for part in parts[:-2]]


class Server:
    """Where to reach a server, and requests to it by hand."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def send(
        self,
        path: str,
        body: Any = None,
        method: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """A request; `body` is sent as JSON unless it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        given = {"Content-Type": "application/json", **(headers or {})}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, data, given)
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read())
        finally:
            connection.close()

    def complete(self, **body: Any) -> Answer:
        return self.send("/v1/completions", {"temperature": 0, **body})

    def chat(self, *messages: str, **body: Any) -> Answer:
        """A chat in which the user and the assistant speak in turn."""
        listed = [
            {"role": "assistant" if place % 2 else "user", "content": text}
            for place, text in enumerate(messages)
        ]
        return self.send("/v1/chat/completions", {"messages": listed, "temperature": 0, **body})

    def metrics(self) -> dict[str, float]:
        """Every sample by name and labels, without the labels that all have."""
        answer = self.send("/metrics")
        assert answer.status == 200
        samples = {}
        for line in answer.body.decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = re.sub(r'(engine="0"|model_name="[^"]*"),?', "", name).replace(",}", "}")
                samples[name.removesuffix("{}")] = float(value)
        return samples


def open_request(
    server: Server, body: dict[str, Any], path: str = "/v1/completions"
) -> socket.socket:
    """Send a request and keep the connection, to be dropped later."""
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    sock.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


def probe_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server here asks a client that sends no more at once, not after 0.1 seconds, whether it still
    reads. Until it has asked, the engine works for one that has left."""
    monkeypatch.setattr("mini_vllm.entrypoints.openai.connection._FIRST_PROBE", 0.01)


class ServerHere(Server):
    """A server in a thread of this process, its engine within reach."""

    def __init__(self, port: int, llm: AsyncLLM, serving: Serving) -> None:
        super().__init__(port)
        self.llm = llm
        self.serving = serving

    @property
    def engine(self) -> LLMEngine:
        return self.llm.engine

    def free_blocks(self) -> int:
        return self.engine.engine_core.kv_cache_manager.block_pool.get_num_free_blocks()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
            time.sleep(0.01)

    def wait_for_answers(self) -> None:
        """Wait until no answer is on its way. A search by beams has no request between two of its steps."""
        self.wait_until(lambda: not self.serving.in_flight, "no answer is on its way")

    def wait_idle(self) -> None:
        """Wait until no request is left; then no block may be."""
        self.wait_until(lambda: not self.engine.has_unfinished_requests(), "no request is left")
        core = self.engine.engine_core
        assert self.free_blocks() == self.engine.config.num_gpu_blocks - 1  # type: ignore[operator]
        core.kv_cache_manager.check_invariants()
        assert not self.engine.output_processor.request_states
        assert not self.engine.output_processor.parent_requests

    def in_time(self, ask: Callable[[], Answer], tries: int = 20) -> Answer:
        """What `ask` brings, asked again while the server finds that this client was too slow: where it waits
        for 0.2 seconds only, a client on a busy machine may be."""
        for _ in range(tries):
            if (answer := ask()).status != 408:
                break
        return answer

    def check_unharmed(self) -> None:
        """The engine is idle, holds nothing, and still answers as ever."""
        self.wait_idle()
        assert not self.llm.errored
        assert self.in_time(lambda: self.send("/health")).status == 200
        answer = self.in_time(lambda: self.complete(prompt="The KV cache", max_tokens=3))
        assert answer.status == 200
        assert answer.json["usage"]["completion_tokens"] == 3


@contextlib.contextmanager
def serve_here(
    config: EngineConfig | None = None, llm: AsyncLLM | None = None, **settings: Any
) -> Iterator[ServerHere]:
    """A server in a thread."""
    from mini_vllm.entrypoints.openai.app import build_app

    llm = llm or AsyncLLM(config=config)
    with bind("127.0.0.1", 0) as sock:
        try:
            with serve_app(build_app(llm, ServerSettings(**settings)), llm, sock) as here:
                yield here
        finally:
            llm.shutdown(PATIENCE)


@contextlib.contextmanager
def serve_app(app: Any, llm: AsyncLLM, sock: socket.socket) -> Iterator[ServerHere]:
    """Uvicorn in a thread, around an application that exists."""
    import uvicorn

    from mini_vllm.entrypoints.openai.run import make_config

    server = uvicorn.Server(make_config(app, "critical"))
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    try:
        here = ServerHere(sock.getsockname()[1], llm, app.state.serving)
        here.wait_until(lambda: server.started, "the server has started")
        yield here
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


class ServerThere(Server):
    """A server in its own process, as the command starts it."""

    def __init__(self, port: int, process: subprocess.Popen[str], log: Path) -> None:
        super().__init__(port)
        self.process = process
        self._log = log

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    @property
    def log(self) -> str:
        """What it has written to stderr."""
        return self._log.read_text(encoding="utf-8")

    def peak_mib(self) -> float:
        """The most memory that was resident since `forget_peak`, in MiB (Linux)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found, status
        return int(found[1]) / 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def cpu_seconds(self) -> float:
        """Processor time of all its threads since the start (Linux)."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii")
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def wait_until_waiting(self, count: int) -> None:
        """Wait until the scheduler has `count` requests in its waiting queue."""
        self._wait_for("waiting", count)

    def wait_until_running(self, count: int) -> None:
        """Wait until the scheduler runs `count` requests."""
        self._wait_for("running", count)

    def _wait_for(self, queue: str, count: int) -> None:
        end = time.monotonic() + PATIENCE
        while (found := self.metrics()[f"vllm:num_requests_{queue}"]) != count:
            assert time.monotonic() < end, f"{found} requests are {queue}, wanted {count}"
            time.sleep(0.02)

    def wait_for_answers(self) -> None:
        """Wait until no answer is on its way. A search by beams has no request between two of its steps."""
        self.wait_until(lambda: not self.serving.in_flight, "no answer is on its way")

    def wait_idle(self) -> None:
        """Wait until no request is left; then no block may be held."""
        end = time.monotonic() + PATIENCE
        while True:
            sample = self.metrics()
            left = sample["vllm:num_requests_running"] + sample["vllm:num_requests_waiting"]
            if not left:
                assert sample["vllm:kv_cache_usage_perc"] == 0
                return
            assert time.monotonic() < end, f"{left} requests are left"
            time.sleep(0.02)


@contextlib.contextmanager
def serve_there(*flags: str) -> Iterator[ServerThere]:
    """`python -m mini_vllm.entrypoints.openai`, on a free port."""
    command = [sys.executable, "-m", "mini_vllm.entrypoints.openai", "--port", "0", *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stderr"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        assert process.stdout is not None
        try:
            readable, _, _ = select.select([process.stdout], [], [], PATIENCE)
            line = process.stdout.readline() if readable else ""
            found = re.search(r"http://127\.0\.0\.1:(\d+)$", line.strip())
            assert found, f"{line!r} {log.read_text()}"
            yield ServerThere(int(found[1]), process, log)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
