"""The server under load: `python -m benchmarks.serve --soak [--save]`.

Streams are kept open and each that ends is replaced; a third of the clients leave in the middle. Every
answer that is read to its end must equal the offline one, at the end no block may be held, and the
server's memory must have stopped growing. The KV pool is too small for all of them, so requests wait
and are preempted.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

from benchmarks.serve_processes import MAX_MODEL_LEN, ServerProcess, http_request, make_prompts


def resident_kib(pid: int) -> int:
    """Resident memory of a process, from /proc."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise SystemExit("/proc tells no VmRSS")


async def soak_stream(port: int, body: dict[str, Any], leave_after: int | None) -> str | None:
    """One stream's text; None if it left after so many events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(http_request(body))
        text, events, buffer = "", 0, b""
        while leave_after is None or events < leave_after:
            part = await reader.read(65536)
            if not part:
                raise SystemExit(f"the server closed a stream: {buffer[-300:]!r}")
            # HTTP's chunk sizes stand in lines of their own, between whole events.
            *lines, buffer = (buffer + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    events += 1
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise SystemExit(f"a stream ended with an error: {chunk}")
                    text += chunk["choices"][0]["text"]
                elif line.startswith(b"data: [DONE]"):
                    return text
        return None
    finally:
        writer.transport.abort()


async def soak(
    server: ServerProcess, requests: int, streams: int, wanted: list[tuple[dict[str, Any], str]]
) -> dict[str, Any]:
    """Send `requests`, `streams` at a time; a third leaves in the middle."""
    rng = random.Random(1)
    counts = {"whole": 0, "left": 0, "different": 0}
    memory: list[int] = []
    numbers = iter(range(requests))

    async def client() -> None:
        for number in numbers:
            body, text = wanted[rng.randrange(len(wanted))]
            leave = rng.randint(0, 12) if rng.random() < 0.34 else None
            got = await soak_stream(server.port, body, leave)
            counts["left" if got is None else "whole"] += 1
            counts["different"] += got is not None and got != text
            if number % max(requests // 50, 1) == 0:
                memory.append(resident_kib(server.process.pid))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(streams)))
    seconds = time.perf_counter() - start
    end = time.monotonic() + 30
    samples = server.metrics()
    while samples["vllm:num_requests_running"] + samples["vllm:num_requests_waiting"]:
        if time.monotonic() > end:
            break
        await asyncio.sleep(0.1)
        samples = server.metrics()
    # The first fifth fills pools and caches; from there on it should be flat.
    settled = memory[len(memory) // 5 :]
    return {
        "requests": requests,
        "streams": streams,
        "seconds": seconds,
        "read to the end": counts["whole"],
        "left in the middle": counts["left"],
        "different from offline": counts["different"],
        "requests left": int(
            samples["vllm:num_requests_running"] + samples["vllm:num_requests_waiting"]
        ),
        "KV usage at the end": samples["vllm:kv_cache_usage_perc"],
        "preemptions": int(samples["vllm:num_preemptions_total"]),
        "RSS MiB after a fifth": settled[0] / 1024,
        "RSS MiB at the end": resident_kib(server.process.pid) / 1024,
    }


def run_soak(model: str, requests: int, streams: int) -> tuple[dict[str, Any], bool]:
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
    # A pool that does not hold them all, so that requests are preempted too.
    server = ServerProcess(model, "--num-gpu-blocks", "200")
    try:
        row = asyncio.run(soak(server, requests, streams, wanted))
    finally:
        row_status = server.close()
    row["exit status"] = row_status
    growth = row["RSS MiB at the end"] / row["RSS MiB after a fifth"]
    good = (
        row["different from offline"] == 0
        and row["requests left"] == 0
        and row["KV usage at the end"] == 0.0
        and row["exit status"] == 0
        and growth < 1.05
    )
    return row, good
