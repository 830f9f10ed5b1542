"""Given: a wire that counts, the links, and what the ranks of an engine have said."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.sim import Link, get_card, get_link, models, rank_calls

MEASURED = Path(__file__).resolve().parent / "measured.json"
H100 = get_card("h100")
NVLINK = get_link("nvlink", H100)
BIG = models()["llama-3-70b"]

Array = np.ndarray[Any, np.dtype[np.float32]]
Ledger = Counter[tuple[str, tuple[int, ...], int]]


class Wire:
    """Joins ranks, and counts what they send. A dead wire delivers zeros.

    Attributes:
        steps: so far.
        sent: bytes, by rank.
        messages: of each step, its (source, target, bytes).
    """

    def __init__(self, num_ranks: int, dead: bool = False) -> None:
        self.steps = 0
        self.dead = dead
        self.sent = [0] * num_ranks
        self.messages: list[list[tuple[int, int, int]]] = []

    def step(self, messages: dict[tuple[int, int], Array]) -> dict[tuple[int, int], Array]:
        """Send all these at once. Returns copies, under the same keys."""
        self.steps += 1
        self.messages.append([(a, b, one.nbytes) for (a, b), one in messages.items()])
        for (source, _), one in messages.items():
            self.sent[source] += one.nbytes
        deliver = np.zeros_like if self.dead else np.array
        return {key: deliver(one) for key, one in messages.items()}


def draw(num_ranks: int, length: int, seed: int = 0) -> list[Array]:
    """An array for each rank, the same on every run."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(length).astype(np.float32) for _ in range(num_ranks)]


def in_rank_order(arrays: list[Array]) -> Array:
    """Their sum, rank 0 first."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


def made(name: str, latency_us: float, gb_s: float) -> Link:
    """A link with these figures."""
    return Link(name, latency_us / 1e6, gb_s * 1e9, same_node=True, fully_connected=True)


def noors_step(ranks: int, num_tokens: int, num_requests: int) -> Ledger:
    """What one rank of Noor's Llama-3-70B says in a step: the rule of `mini_vllm.sim.rank_calls`, which is
    tested to be the engine's ledger, with her sizes and 16 bits."""
    return rank_calls(BIG, ranks, 1, 0, num_tokens, num_requests).tensor


def cross(lab: Any, link: Link, ranks: int, other: Any) -> float:
    """Up to how many bytes one shot is faster than another way, by halving; infinite beyond 1 TB."""
    low, high = 0.0, 1e12
    if lab.seconds(link, lab.one_shot_way(ranks), high) < lab.seconds(link, other, high):
        return math.inf
    for _ in range(80):
        middle = (low + high) / 2
        faster = lab.seconds(link, lab.one_shot_way(ranks), middle) < lab.seconds(
            link, other, middle
        )
        low, high = (middle, high) if faster else (low, middle)
    return low


def measured() -> tuple[int, Ledger]:
    """Of the tiny Llama on two ranks, two prompts and 24 steps: how many ranks, and the ledger of each."""
    data = json.loads(MEASURED.read_text(encoding="utf-8"))
    calls = {(kind, tuple(shape), nbytes): n for kind, shape, nbytes, n in data["calls"]}
    return data["ranks"], Counter(calls)


def measure() -> dict[str, Any]:
    """Run the engine on two ranks, each a process, and read its ledger: what `measured.json` holds."""
    from mini_vllm import LLM, SamplingParams

    llm = LLM(tensor_parallel_size=2)
    core = llm.llm_engine.engine_core
    try:
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        llm.generate(["Once upon a time", "The scheduler"], params, use_tqdm=False)
        ledgers = core.model_executor.collective_rpc("get_ledgers")
    finally:
        core.shutdown()
    first, second = (ledger["tensor"].calls for ledger in ledgers)
    assert first == second, f"the ranks have said other things: {first} and {second}"
    return {
        "ranks": 2,
        "calls": [[kind, list(shape), size, n] for (kind, shape, size), n in first.items()],
    }
