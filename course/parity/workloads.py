"""Seeded random workloads for schedulers: what is drawn, from which ranges.

The same seed and shape give the same workload for ever, so that a recording can be named by them.
"""

from __future__ import annotations

import random
from typing import Any

from course.parity.traces import Arrival, Config, Group, Speculation, Workload, token

METHODS = ["ngram", "draft_model", "eagle"]

# What each shape draws from. Blocks are given as spare room over the longest request alone:
# a number of blocks, or a share of that request's need.
SHAPES: dict[str, dict[str, Any]] = {
    "mixed": {},
    "odd-blocks": {"block_size": [3, 5, 7, 32]},
    "large-budget": {"budget": [1024, 4096], "max_num_seqs": [16, 64], "requests": (40, 90)},
    "no-chunks": {
        "chunked": [False],
        "budget": [128],
        "max_model_len": [128],
        "spare": [6.0],
        "threshold": [0],
        "max_num_seqs": [8, 12],
        "gap": [0, 0, 0, 0, 2],
    },
    "no-gate": {"gate": [False], "spare": [1, 2, 0.5]},
    "crowd": {
        "requests": (200, 260),
        "max_num_seqs": [32, 64, 128],
        "budget": [256, 1024],
        "block_size": [4, 16],
        "spare": [4.0, 12.0, 30.0],
        "gap": [0, 0, 0, 0, 0, 0, 0, 1],
    },
    "priority": {"policy": ["priority"], "spare": [0, 1, 0.5]},
    "short-model": {"max_model_len": [48, 64]},
    "no-cache": {"caching": [False], "spare": [0, 2, 1.0]},
    "stop-tokens": {"stop": (0, 4)},
    "conversations": {"caching": [True], "block_size": [1, 2, 3, 4], "spare": [1, 1.0, 4.0]},
    "windows": {"groups": ["full w", "full w", "full w", "w", "full w w", "full w v", "w v"]},
    "block-sizes": {
        "groups": ["full w", "full w", "full w w", "full w v", "w v", "w full"],
        "block_size": [1, 2, 4],
        "multiples": [1, 1, 2, 3, 4],
    },
    "chunks": {"groups": ["full c", "c", "full c c"], "block_size": [1, 2, 4, 8]},
    "drafts": {"drafts": METHODS, "resets": True},
    "drafts-tight": {"drafts": METHODS, "spare": [0, 1, 0.5], "policy": ["fcfs", "priority"]},
    "drafts-priority": {"drafts": METHODS, "policy": ["priority"], "spare": [1, 0.5, 1.0]},
    "drafts-short-model": {"drafts": METHODS, "max_model_len": [48, 64]},
    "drafts-stop-tokens": {"drafts": METHODS, "stop": (0, 4)},
    "drafts-conversations": {
        "drafts": METHODS,
        "caching": [True],
        "block_size": [1, 2, 3, 4],
        "spare": [1, 1.0, 4.0],
        "resets": True,
    },
    "drafts-windows": {
        "drafts": METHODS,
        "groups": ["full w", "full w", "w", "full w w", "full w v", "w v"],
    },
    "drafts-block-sizes": {
        "drafts": METHODS,
        "groups": ["full w", "full w", "full w w", "full w v", "w v", "w full"],
        "block_size": [1, 2, 4],
        "multiples": [1, 1, 2, 3, 4],
    },
}


def workload(seed: int, shape: str = "mixed") -> Workload:
    """A random workload of a shape; the same for the same arguments, for ever.

    Raises ValueError for an unknown shape.
    """
    if shape not in SHAPES:
        raise ValueError(f"unknown shape {shape!r}; one of {', '.join(SHAPES)}")
    ranges = SHAPES[shape]
    rng = random.Random(f"{shape} {seed}")

    def draw(key: str, default: list[Any]) -> Any:
        return rng.choice(ranges.get(key, default))

    block_size = draw("block_size", [1, 2, 4, 8, 16])
    max_model_len = draw("max_model_len", [256])
    max_num_seqs = draw("max_num_seqs", [1, 2, 4, 7, 12])
    budget = max(draw("budget", [8, 16, 48, 64, 256]), max_num_seqs)
    count = rng.randint(*ranges.get("requests", (4, 40)))
    gaps = ranges.get("gap", [0, 0, 0, 1, 1, 3, 6])
    requests = _requests(rng, count, gaps, max_model_len)
    if shape == "conversations":
        _follow_up(rng, requests, max_model_len)
    if "stop" in ranges:
        for q in requests:
            q["stop_token_ids"] = rng.sample(range(3, 51), rng.randint(*ranges["stop"]))
    # Enough for the longest request alone (vLLM would wait for ever otherwise), seldom for all.
    longest = max(min(len(q["prompt"]) + q["max_tokens"], max_model_len) for q in requests)
    spec: Speculation | None = None
    if "drafts" in ranges:
        spec = {"method": draw("drafts", []), "num_speculative_tokens": rng.randint(1, 5)}
        budget = max(budget, 2 * max_num_seqs)  # a draft model has a row a request of it
        # Two plans' drafts past the end, and the drafter's slots past those.
        longest = min(longest + 3 * spec["num_speculative_tokens"], max_model_len)
    need = -(-longest // block_size)
    groups = _groups(rng, rng.choice(ranges["groups"])) if "groups" in ranges else []
    if "multiples" in ranges:
        for group in groups:
            group["block_size"] = block_size * draw("multiples", [])
        rng.choice(groups)["block_size"] = block_size  # the others' greatest common divisor
    if groups:
        at_once = budget + (spec["num_speculative_tokens"] if spec else 0)
        need = sum(_blocks_at_most(g, longest, block_size, at_once, max_model_len) for g in groups)
        need += len(groups) * (spec is not None)
    spare = draw("spare", [0, 1, 3, 1.0, 4.0])
    num_blocks = 1 + need + (spare if isinstance(spare, int) else int(spare * need))
    config: Config = {
        "block_size": block_size,
        "num_blocks": num_blocks,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget,
        "long_prefill_token_threshold": draw("threshold", [0, 0, 3, 16]),
        "enable_prefix_caching": draw("caching", [True, True, True, False]),
        "max_model_len": max_model_len,
        "policy": draw("policy", ["fcfs", "fcfs", "priority"]),
        "enable_chunked_prefill": draw("chunked", [True]),
        "scheduler_reserve_full_isl": draw("gate", [True]),
    }
    if groups:
        config["kv_cache_groups"] = groups
    work: Workload = {"seed": seed, "config": config, "requests": requests}
    if spec is not None:
        config["speculative_config"] = spec
        if ranges.get("resets") and rng.random() < 0.5:
            last = max(q["step"] for q in requests) + 20
            work["resets"] = sorted(rng.sample(range(last), 3))
    return work


def _groups(rng: random.Random, letters: str) -> list[Group]:
    """Groups from a word for each: `w` and `v` are windows of two sizes, `c` is a chunk of tokens."""
    window, other = rng.sample([1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 100], 2)
    kinds: dict[str, Group] = {
        "full": {"type": "full", "size": 0},
        "w": {"type": "sliding_window", "size": window},
        "v": {"type": "sliding_window", "size": other},
        "c": {"type": "chunked_local", "size": rng.choice([4, 8, 16, 40])},
    }
    return [kinds[letter].copy() for letter in letters.split()]


def _blocks_at_most(
    group: Group, num_tokens: int, block_size: int, budget: int, max_model_len: int
) -> int:
    """What a request of `num_tokens` tokens can hold of one group while it is alone."""
    block_size = group.get("block_size", block_size)
    every = -(-num_tokens // block_size)
    if group["type"] == "full":
        return every
    sliding = group["type"] == "sliding_window"
    at_once = min(group["size"] - sliding + budget, max_model_len)
    return min(every, -(-at_once // block_size) + sliding)


def _requests(rng: random.Random, count: int, gaps: list[int], max_model_len: int) -> list[Arrival]:
    """`count` requests, each a number of steps drawn from `gaps` after the one before.

    Prompts often share a beginning, so that the prefix cache has work.
    """

    def words(low: int, high: int) -> list[int]:
        return [rng.randint(3, 50) for _ in range(rng.randint(low, high))]

    prefixes = [words(1, 90) for _ in range(3)]
    requests: list[Arrival] = []
    step = 0
    for i in range(count):
        step += rng.choice(gaps)
        kind = rng.random()
        if kind < 0.15 and requests:
            prompt = list(rng.choice(requests)["prompt"])
        elif kind < 0.7:
            prompt = rng.choice(prefixes) + words(0, 30)
        else:
            prompt = words(1, 60)
        requests.append(
            {
                "id": f"r{i:03d}",
                "step": step,
                "prompt": prompt[: max_model_len - 1],
                "max_tokens": rng.randint(1, 48),
                "ignore_eos": rng.random() < 0.4,
                "priority": rng.randint(0, 3),
                "abort": step + rng.randint(0, 25) if rng.random() < 0.1 else None,
            }
        )
    return requests


def _follow_up(rng: random.Random, requests: list[Arrival], max_model_len: int) -> None:
    """Let prompts be an earlier one with its answer, which the prefix cache may hold too."""
    for i, q in enumerate(requests[2:], 2):
        if rng.random() < 0.6:
            before = rng.randrange(i)
            said = list(requests[before]["prompt"])
            for _ in range(requests[before]["max_tokens"]):
                said.append(token(before, len(said)))
            q["prompt"] = (said + q["prompt"][:2])[: max_model_len - 1]
