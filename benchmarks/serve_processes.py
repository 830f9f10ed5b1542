"""What the two measurements of the server share: prompts, requests, and the processes they run.

`serve.py` measures the overhead, `serve_soak.py` the load.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import signal
import subprocess
import sys
from typing import IO, Any

MAX_MODEL_LEN = 1024


def make_prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Random printable bytes behind a `<bos>`."""
    rng = random.Random(seed)
    return [[1] + [rng.randint(8 + 32, 8 + 126) for _ in range(length - 1)] for _ in range(count)]


def http_request(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\n"
        "Host: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Worker:
    """A process of `benchmarks.serve` that serves rounds, stopped while it is not its turn."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.serve", *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._read()
        self.process.send_signal(signal.SIGSTOP)

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker died: {self.process.args!r}")
        value: dict[str, Any] = json.loads(line)
        return value

    def round(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        self.process.send_signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class ServerProcess:
    """`mini-vllm serve` in a process of its own; its stderr goes to `log`, or where ours goes."""

    def __init__(self, model: str, *flags: str, log: IO[str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mini_vllm.entrypoints.openai", "--port", "0", "--model", model,
             "--max-model-len", str(MAX_MODEL_LEN), *flags],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)$", line.strip())
        if found is None:
            raise SystemExit(f"the server did not start: {line!r}")
        self.port = int(found[1])

    def metrics(self) -> dict[str, float]:
        """The samples, by name alone; those with labels of their own are summed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        samples: dict[str, float] = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.partition("{")[0]
                samples[name] = samples.get(name, 0.0) + float(value)
        return samples

    def cpu_seconds(self) -> float:
        return self.metrics()["process_cpu_seconds_total"]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> int:
        """Ask it to end; its exit status."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return -1
