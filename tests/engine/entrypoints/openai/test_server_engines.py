"""A server with several engines: its answers are those of one, and no process outlives it."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client", "jinja2"):
    pytest.importorskip(package)

from mini_vllm import LLM, SamplingParams  # noqa: E402
from tests.engine.helpers.patience import PATIENCE  # noqa: E402
from tests.engine.helpers.ranks import is_alive  # noqa: E402
from tests.engine.helpers.server.server_helpers import ServerThere, serve_there  # noqa: E402

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="no /proc to find a process's children in"
)
PROMPTS = ["Once upon a time", "The scheduler", "The KV cache", "x"]


def children(pid: int) -> list[int]:
    """Those of all its threads, and theirs."""
    mine = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text("ascii").split()
    ]
    return mine + [pid for child in mine for pid in children(child)]


def wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + PATIENCE
    while any(map(is_alive, pids)):
        assert time.monotonic() < end, [pid for pid in pids if is_alive(pid)]
        time.sleep(0.01)


def ask_all(server: ServerThere) -> list[str]:
    def ask(prompt: str) -> str:
        answer = server.complete(prompt=prompt, max_tokens=12, temperature=0)
        assert answer.status == 200, answer.body
        return str(answer.json["choices"][0]["text"])

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(ask, PROMPTS))


def test_a_server_with_two_engines() -> None:
    with serve_there("--data-parallel-size", "2") as server:
        pids = children(server.process.pid)
        assert len(pids) >= 2
        answers = ask_all(server)
        metrics = server.metrics()
        assert metrics["vllm:generation_tokens_total"] == 12 * len(PROMPTS)
        assert metrics["vllm:num_requests_running"] == 0
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.log
        wait_until_gone(pids)
    greedy = SamplingParams(temperature=0, max_tokens=12)
    outputs = LLM().generate(PROMPTS, greedy, use_tqdm=False)
    assert answers == [output.outputs[0].text for output in outputs]


def test_a_server_that_is_killed_leaves_no_engine() -> None:
    with serve_there("--data-parallel-size", "2", "--tensor-parallel-size", "2") as server:
        pids = children(server.process.pid)
        assert len(pids) >= 6
        server.signal(signal.SIGKILL)
        server.wait()
        wait_until_gone(pids)


def test_a_server_whose_engine_dies_says_so_and_ends() -> None:
    with serve_there("--data-parallel-size", "2") as server:
        pids = children(server.process.pid)
        victims = [p for p in pids if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]
        os.kill(victims[1], signal.SIGKILL)
        assert server.wait() == 1
        assert f"(process {victims[1]}) was ended by signal 9 (SIGKILL)" in server.log
        wait_until_gone(pids)
