"""What a busy neighbour does to the step loop: none, one in a process, one in a thread of the loop's.

The neighbour does what a front end does, without a pause: it reads a request's JSON, tokenizes the
prompt and turns ids back into text. The step loop is `mini_vllm`'s, decoding for four. The three
take turns, 20 steps each, so that what else the machine does falls on all alike.

    python phase-01-architecture/gil.py
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import threading
import time
from typing import Any

from anna import EVERYBODY, PROMPTS, greedy, new_engine

from mini_vllm.engine import DEFAULT_MODEL
from mini_vllm.tokenizer import Tokenizer

ROUNDS, STEPS = 15, 20


def front_end_work(go: Any, over: Any) -> None:
    """Work while `go` is set, until `over` is."""
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    body = json.dumps({"prompt": "The KV cache " * 20, "max_tokens": 64})
    while not over.is_set():
        if go.wait(0.1):
            tokenizer.decode(tokenizer.encode(json.loads(body)["prompt"]))


def step_times(engine: Any) -> list[float]:
    """Milliseconds of each of the next steps; the first, in which the neighbour starts, is left out."""
    times = []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        engine.step()
        times.append((time.perf_counter() - start) * 1e3)
    return times[1:]


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    neighbours: dict[str, tuple[Any, Any, Any]] = {}
    for name, make, event in (
        ("in a process", spawn.Process, spawn.Event),
        ("in a thread", threading.Thread, threading.Event),
    ):
        go, over = event(), event()
        neighbour = make(target=front_end_work, args=(go, over), daemon=True)
        neighbour.start()
        neighbours[name] = neighbour, go, over

    engine = new_engine()
    for name in EVERYBODY:
        engine.add_request(name, PROMPTS[name], greedy(3 * (ROUNDS + 1) * (STEPS + 2)))
    times: dict[str, list[float]] = {"none": [], **{name: [] for name in neighbours}}
    step_times(engine)
    for _ in range(ROUNDS):
        times["none"] += step_times(engine)
        for name, (_, go, _) in neighbours.items():
            go.set()
            times[name] += step_times(engine)
            go.clear()
    for neighbour, go, over in neighbours.values():
        over.set()
        go.set()
        neighbour.join()

    print(f"{'neighbour':14} {'median step':>12} {'slowest of 20':>15}")
    for name, taken in times.items():
        worst = statistics.quantiles(taken, n=20)[-1]
        print(f"{name:14} {statistics.median(taken):9.2f} ms {worst:12.2f} ms")


if __name__ == "__main__":
    main()
