"""What a busy neighbour does to the step loop: none, one in a process, one in a thread of the loop's.

The neighbour does what a front end does, without a pause: it reads a request's JSON, tokenizes the
prompt and turns ids back into text. The step loop is `mini_vllm`'s, decoding for four. The three
take turns, 20 steps each, and a round is compared with itself only, because what else the machine
does then falls on all alike.

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

from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.tokenizer import Tokenizer

ROUNDS, STEPS = 15, 20


def front_end_work(go: Any, over: Any) -> None:
    """Work while `go` is set, until `over` is."""
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    body = json.dumps({"prompt": "The KV cache " * 20, "max_tokens": 64})
    while not over.is_set():
        if go.wait(0.1):
            tokenizer.decode(tokenizer.encode(json.loads(body)["prompt"]))


def step_time(engine: Any) -> float:
    """The median of the next steps, without the first, in which the neighbour starts."""
    times = []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


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
    ratios: dict[str, list[float]] = {name: [] for name in neighbours}
    step_time(engine)
    for _ in range(ROUNDS):
        alone = step_time(engine)
        for name, (_, go, _) in neighbours.items():
            go.set()
            ratios[name].append(step_time(engine) / alone)
            go.clear()
    for neighbour, go, over in neighbours.values():
        over.set()
        go.set()
        neighbour.join()

    print("a step beside the neighbour, in steps alone (the middle half of the rounds)")
    for name, found in ratios.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{name:14} {middle:5.2f}   ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
