"""What a busy neighbour does to the step loop: none, one in a thread, one in a process.

The neighbour does what a front end does: it reads a request's JSON, tokenizes the prompt and turns
ids back into text, without a pause. The step loop is `mini_vllm`'s, decoding for four.

    python phase-01-architecture/gil.py
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine import DEFAULT_MODEL
from mini_vllm.tokenizer import Tokenizer

WARM_UP, STEPS = 20, 300


def front_end_work(over: Callable[[], bool]) -> None:
    """A front end without a pause, until it is told to end."""
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    body = json.dumps({"prompt": "The KV cache " * 20, "max_tokens": 64})
    while not over():
        tokenizer.decode(tokenizer.encode(json.loads(body)["prompt"]))


def in_a_process(started: Any, over: Any) -> None:
    started.set()
    front_end_work(over.is_set)


def step_times() -> list[float]:
    """Milliseconds of each step, for four requests that all decode."""
    engine = LLMEngine(config=EngineConfig(max_num_seqs=4))
    params = SamplingParams(temperature=0, max_tokens=WARM_UP + STEPS + 1, ignore_eos=True)
    for name in ("anna", "ben", "cleo", "dov"):
        engine.add_request(name, "The KV cache", params)
    times = []
    while engine.has_unfinished_requests():
        start = time.perf_counter()
        engine.step()
        times.append((time.perf_counter() - start) * 1e3)
    return times[WARM_UP:-1]


def beside_a_thread() -> list[float]:
    over = threading.Event()
    neighbour = threading.Thread(target=front_end_work, args=(over.is_set,))
    neighbour.start()
    times = step_times()
    over.set()
    neighbour.join()
    return times


def beside_a_process() -> list[float]:
    context = multiprocessing.get_context("spawn")
    started, over = context.Event(), context.Event()
    neighbour = context.Process(target=in_a_process, args=(started, over))
    neighbour.start()
    started.wait()
    times = step_times()
    over.set()
    neighbour.join()
    return times


def main() -> None:
    print(f"{'the neighbour':14} {'median':>10} {'slowest of ' + str(STEPS):>17}")
    for name, measure in (
        ("none", step_times),
        ("in a process", beside_a_process),
        ("in a thread", beside_a_thread),
    ):
        times = measure()
        print(f"{name:14} {statistics.median(times):7.2f} ms {max(times):14.2f} ms")


if __name__ == "__main__":
    main()
