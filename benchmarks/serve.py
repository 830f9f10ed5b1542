"""What HTTP adds to the engine, and whether the server holds under load.

    python -m benchmarks.serve [--save]
    python -m benchmarks.serve --soak [--seconds 60] [--save]

The first runs the same prompts three ways, in rounds that alternate: the engine alone (`LLMEngine`,
deltas, one loop), `AsyncLLM` without HTTP, and streams over HTTP. Server and client are processes of
their own; those that wait are stopped (SIGSTOP). The client is one process with raw sockets that only
counts bytes until the end of each stream, so that it takes little of the machine. The best round
counts. Processor time of server and client is given a token, beside the engine's own.

The second stands in `serve_soak.py`: many streams, clients that leave in the middle, nothing wrong and
nothing lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from benchmarks import machine
from benchmarks.generate import MODEL
from benchmarks.serve_processes import (
    MAX_MODEL_LEN,
    ServerProcess,
    Worker,
    http_request,
    make_prompts,
)
from benchmarks.serve_soak import run_soak

# -- the processes --------------------------------------------------------------------------------


def engine_worker(kind: str, model: str) -> int:
    """Serve rounds over stdin and stdout, without HTTP: `engine` or `async`."""
    from mini_vllm import EngineConfig, LLMEngine, RequestOutputKind, SamplingParams
    from mini_vllm.engine.async_llm import AsyncLLM

    config = EngineConfig(max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False)
    engine = LLMEngine(model, config)

    def params(max_tokens: int) -> SamplingParams:
        return SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip

    def run_engine(prompts: list[list[int]], max_tokens: int) -> int:
        for number, prompt in enumerate(prompts):
            engine.add_request(str(number), prompt, params(max_tokens))
        chunks = 0
        while engine.has_unfinished_requests():
            chunks += len(engine.step())
        return chunks

    async def run_async(prompts: list[list[int]], max_tokens: int) -> int:
        async def one(number: int, prompt: list[int]) -> int:
            outputs = llm.generate(prompt, params(max_tokens), str(number))
            return sum([1 async for _ in outputs])

        return sum(await asyncio.gather(*(one(n, p) for n, p in enumerate(prompts))))

    loop = asyncio.new_event_loop()
    if kind == "async":
        llm = AsyncLLM(engine)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        start, cpu = time.perf_counter(), time.process_time()
        if kind == "engine":
            chunks = run_engine(task["prompts"], task["max_tokens"])
        else:
            chunks = loop.run_until_complete(run_async(task["prompts"], task["max_tokens"]))
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        print(json.dumps({"seconds": seconds, "cpu": cpu, "chunks": chunks}), flush=True)
    return 0


def client_worker(port: int) -> int:
    """Serve rounds: all prompts as streams over HTTP at once, read to the end by one event loop."""

    class Reader(asyncio.Protocol):
        def __init__(self, request: bytes, done: asyncio.Future[None]) -> None:
            self.request, self.done = request, done
            self.tail = b""
            self.chunks = 0

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.WriteTransport)
            self.transport = transport
            transport.write(self.request)

        def data_received(self, data: bytes) -> None:
            self.chunks += data.count(b"data: ")
            self.tail = (self.tail + data)[-40:]
            if b"[DONE]" in self.tail:
                self.transport.close()

        def connection_lost(self, error: Exception | None) -> None:
            if not self.done.done():
                self.done.set_result(None)

    async def run(requests: list[bytes]) -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        readers = [Reader(request, loop.create_future()) for request in requests]
        for reader in readers:
            await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", port)  # type: ignore[misc]
        await asyncio.gather(*(reader.done for reader in readers))
        whole = sum(b"[DONE]" in reader.tail for reader in readers)
        return whole, sum(reader.chunks for reader in readers)

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        requests = [
            http_request(
                {"prompt": prompt, "max_tokens": task["max_tokens"], "temperature": 0,
                 "ignore_eos": True, "stream": True}
            )
            for prompt in task["prompts"]
        ]  # fmt: skip
        start, cpu = time.perf_counter(), time.process_time()
        whole, chunks = asyncio.run(run(requests))
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        result = {"seconds": seconds, "cpu": cpu, "chunks": chunks, "whole": whole}
        print(json.dumps(result), flush=True)
    return 0


# -- the overhead ---------------------------------------------------------------------------------


def measure(
    model: str, rounds: int, streams: int, input_len: int, output_len: int
) -> dict[str, Any]:
    """One row: seconds a round of each way, and processor time a token."""
    server = ServerProcess(model, "--no-enable-prefix-caching")
    workers: dict[str, Worker] = {}
    best: dict[str, dict[str, Any]] = {}
    server_cpu = float("inf")
    try:
        workers["engine"] = Worker("--worker", "engine", "--model", model)
        workers["async"] = Worker("--worker", "async", "--model", model)
        workers["http"] = Worker("--client", str(server.port))
        for number in range(rounds + 1):
            prompts = make_prompts(streams, input_len, number)
            for name, worker in workers.items():
                server.signal(signal.SIGCONT if name == "http" else signal.SIGSTOP)
                before = server.cpu_seconds() if name == "http" else 0.0
                got = worker.round(prompts, output_len)
                if name == "http":
                    if got["whole"] != streams:
                        raise SystemExit(f"{streams - got['whole']} streams did not end well")
                    if number:
                        server_cpu = min(server_cpu, server.cpu_seconds() - before)
                if number and got["seconds"] < best.get(name, {"seconds": 1e9})["seconds"]:
                    best[name] = got  # the first round warms up
    finally:
        for worker in workers.values():
            worker.close()
        server.close()
    tokens = streams * output_len
    engine = best["engine"]["seconds"]
    return {
        "streams": streams,
        "engine tok/s": tokens / engine,
        "AsyncLLM tok/s": tokens / best["async"]["seconds"],
        "HTTP tok/s": tokens / best["http"]["seconds"],
        "AsyncLLM / engine time": best["async"]["seconds"] / engine,
        "HTTP / engine time": best["http"]["seconds"] / engine,
        "tokens a chunk": tokens / best["http"]["chunks"],
        "engine CPU us/token": 1e6 * best["engine"]["cpu"] / tokens,
        "AsyncLLM CPU us/token": 1e6 * best["async"]["cpu"] / tokens,
        "server CPU us/token": 1e6 * server_cpu / tokens,
        "client CPU us/token": 1e6 * best["http"]["cpu"] / tokens,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", choices=("engine", "async"), help=argparse.SUPPRESS)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--model", default=str(MODEL), help="checkpoint folder (the shipped one)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the warm-up (5)")
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens (64)")
    parser.add_argument("--output-len", type=int, default=128, help="output tokens (128)")
    parser.add_argument("--streams", type=int, help="streams at once (64; with --soak 200)")
    parser.add_argument("--soak", action="store_true", help="the second measurement")
    parser.add_argument("--requests", type=int, default=5000, help="requests of the soak (5000)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        help="of the soak, before its requests are counted (0)",
    )
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/serve.json or serve-soak.json"
    )
    args = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.worker:
        return engine_worker(args.worker, args.model)
    if args.client:
        return client_worker(args.client)
    if args.soak:
        streams = args.streams or 200
        row, good = run_soak(args.model, args.requests, streams, args.seconds)
        name = "serve-soak"
        command = (
            f"python -m benchmarks.serve --soak --streams {streams} --seconds {args.seconds:g} "
            f"--requests {args.requests}"
        )
    else:
        row = measure(args.model, args.rounds, args.streams or 64, args.input_len, args.output_len)
        name, good = "serve", True
        command = f"python -m benchmarks.serve --input-len {args.input_len} --output-len {args.output_len}"
    for key, value in row.items():
        print(f"{key:28}{machine._cell(value):>12}")
    if args.save:
        print(machine.save(name, command, [row]))
    if not good:
        print("the soak is not as it should be", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
