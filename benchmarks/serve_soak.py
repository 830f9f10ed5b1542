"""The server under load: `python -m benchmarks.serve --soak [--seconds 60] [--save]`.

Streams are kept open and each that ends is replaced, for a time and then for a number of requests. A
third of the clients leave in the middle: which, after how many of their own tokens, and how, is drawn
from a seed. Some have sent a second request behind the first, some have said that they send no more.
Every answer that is read to its end must equal the offline one; at the end no request may run, no
block be held, no file be open that was not before, no line stand in the log, and the server's memory
must have stopped growing. The KV pool is too small for all of them, so requests wait and are preempted.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serve_processes import MAX_MODEL_LEN, ServerProcess, http_request, make_prompts

SEED = 1
_HOW = ("closes", "sends no more", "sends two at once")


@dataclass
class Visit:
    """One client: which request it sends, and when and how it leaves.

    Attributes:
        place: its request's.
        leave_after: tokens of its own stream after which it is gone; None: it stays to the end.
        how: one of `_HOW`.
    """

    place: int
    leave_after: int | None
    how: str


def draw_visits(bodies: list[dict[str, Any]], seed: int) -> Iterator[Visit]:
    """Clients without end, the same for the same seed, whatever the clock says."""
    rng = random.Random(seed)
    while True:
        place = rng.randrange(len(bodies))
        leaves = rng.random() < 0.34
        leave_after = rng.randint(0, bodies[place]["max_tokens"] - 1) if leaves else None
        yield Visit(place, leave_after, rng.choice(_HOW) if leaves else "stays")


def resident_kib(pid: int) -> int:
    """Resident memory of a process, from /proc."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise SystemExit("/proc tells no VmRSS")


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def soak_stream(port: int, body: dict[str, Any], visit: Visit) -> str | None:
    """One stream's text; None if it left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if visit.leave_after is not None:
        # So that each chunk tells how many tokens there have been, however many came together.
        body = body | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    request = http_request(body)
    try:
        if visit.how == "sends two at once":
            request = 2 * request.replace(b"Connection: close\r\n", b"")
        writer.write(request)
        if visit.how == "sends no more":
            writer.write_eof()
        text, buffer = "", b""
        while visit.leave_after != 0:
            part = await reader.read(65536)
            if not part:
                raise SystemExit(f"the server closed a stream: {buffer[-300:]!r}")
            # HTTP's chunk sizes stand in lines of their own, between whole events.
            *lines, buffer = (buffer + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise SystemExit(f"a stream ended with an error: {chunk}")
                    text += chunk["choices"][0]["text"]
                    leave = visit.leave_after
                    if leave is not None and chunk["usage"]["completion_tokens"] >= leave:
                        return None
                elif line.startswith(b"data: [DONE]"):
                    return text
        return None
    finally:
        writer.transport.abort()


async def soak(
    server: ServerProcess,
    requests: int,
    streams: int,
    seconds: float,
    wanted: list[tuple[dict[str, Any], str]],
) -> dict[str, Any]:
    """`streams` at a time: for `seconds`, and then `requests` more."""
    counts = {"requests": 0, "whole": 0, "left": 0, "told": 0, "different": 0}
    memory: list[int] = []
    visits = draw_visits([body for body, _ in wanted], SEED)
    pid = server.process.pid
    files = open_files(pid)

    async def client(first: int, deadline: float) -> None:
        while counts["requests"] < first + requests or time.perf_counter() < deadline:
            visit = next(visits)
            counts["requests"] += 1
            counts["told"] += visit.leave_after is not None
            body, text = wanted[visit.place]
            got = await soak_stream(server.port, body, visit)
            counts["left" if got is None else "whole"] += 1
            counts["different"] += got is not None and got != text
            if (counts["left"] + counts["whole"]) % max(requests // 50, 1) == 0:
                memory.append(resident_kib(pid))

    async def crowd(first: int, deadline: float) -> float:
        start = time.perf_counter()
        await asyncio.gather(*(client(first, deadline) for _ in range(streams)))
        return time.perf_counter() - start

    if seconds:
        await crowd(-requests, time.perf_counter() + seconds)
    before = counts["requests"]
    took = await crowd(before, 0.0)
    left = await settle(server, files)
    # The first fifth fills pools and caches; from there on it should be flat.
    settled = memory[len(memory) // 5 :]
    return {
        "streams": streams,
        "seconds before": seconds,
        "requests before": before,
        "requests": requests,
        "seconds": took,
        "read to the end": counts["whole"],
        "told to leave": counts["told"],
        "left in the middle": counts["left"],
        "different from offline": counts["different"],
        **left,
        "RSS MiB after a fifth": settled[0] / 1024,
        "RSS MiB at the end": resident_kib(pid) / 1024,
    }


async def settle(server: ServerProcess, files: int) -> dict[str, Any]:
    """What is left once the server has had a little time to see that all have gone."""
    end = time.monotonic() + 30
    while True:
        samples = server.metrics()
        requests = samples["vllm:num_requests_running"] + samples["vllm:num_requests_waiting"]
        await asyncio.sleep(0.1)
        more_files = open_files(server.process.pid) - files
        if not (requests or more_files) or time.monotonic() > end:
            return {
                "requests left": int(requests),
                "files left": more_files,
                "KV usage at the end": samples["vllm:kv_cache_usage_perc"],
                "preemptions": int(samples["vllm:num_preemptions_total"]),
            }


def run_soak(
    model: str, requests: int, streams: int, seconds: float = 0.0
) -> tuple[dict[str, Any], bool]:
    """The soak's row, and whether all of it is as it should be."""
    from mini_vllm import LLM, SamplingParams

    rng = random.Random(0)
    bodies: list[dict[str, Any]] = []
    for prompt in make_prompts(64, 48, 0):
        bodies.append(
            {"prompt": prompt[: rng.randint(2, 48)], "max_tokens": rng.randint(4, 64),
             "temperature": 0, "ignore_eos": True, "stream": True}
        )  # fmt: skip
    params = [
        SamplingParams(temperature=0, max_tokens=body["max_tokens"], ignore_eos=True)
        for body in bodies
    ]
    outputs = LLM(model, max_model_len=MAX_MODEL_LEN).generate(
        [body["prompt"] for body in bodies], params, use_tqdm=False
    )
    wanted = [(b, o.outputs[0].text) for b, o in zip(bodies, outputs, strict=True)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        # A pool that does not hold them all, so that requests are preempted too.
        server = ServerProcess(model, "--num-gpu-blocks", "200", log=log)
        try:
            row = asyncio.run(soak(server, requests, streams, seconds, wanted))
        finally:
            status = server.close()
        log.seek(0)
        written = log.read()
    row["tracebacks in the log"] = written.count("Traceback")
    row["lines in the log"] = written.count("\n")
    row["exit status"] = status
    growth = row["RSS MiB at the end"] / row["RSS MiB after a fifth"]
    good = (
        row["left in the middle"] == row["told to leave"]
        and row["different from offline"] == 0
        and row["requests left"] == row["files left"] == 0
        and row["KV usage at the end"] == 0.0
        and row["lines in the log"] == 0
        and row["exit status"] == 0
        and growth < 1.05
    )
    return row, good
