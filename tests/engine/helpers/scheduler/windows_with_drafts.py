"""Blocks that a sliding window gives back while drafts are in flight, and that the next plan still reads.

A plan that is made while drafts are being checked counts them as accepted, so it takes the window to have
passed more than it has. Where they are rejected, its first token stands further to the left, and attends to
what was given back, perhaps to somebody else in that very plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from course.parity.async_traces import AsyncRun
from course.parity.traces import Arrival, Config, Parts

WINDOW, BLOCK_SIZE = 8, 4
REQUESTS: list[Arrival] = [
    {
        "id": f"r{i}", "step": 3 * i, "prompt": [5 + i] * (9 + i), "max_tokens": 30, "ignore_eos": True,
        "priority": 0, "abort": None,
    }
    for i in range(6)
]  # fmt: skip


@dataclass
class _Plan:
    """What changed in the tables: entries given back as (place, block), and blocks taken."""

    given_back: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    taken: dict[str, list[int]] = field(default_factory=dict)


def config(num_speculative_tokens: int) -> Config:
    """One group with a window, in a pool of 13 blocks, and an EAGLE head."""
    return {
        "block_size": BLOCK_SIZE, "num_blocks": 14, "max_num_seqs": 4, "max_num_batched_tokens": 16,
        "long_prefill_token_threshold": 0, "enable_prefix_caching": False, "max_model_len": 256,
        "policy": "fcfs", "kv_cache_groups": [{"type": "sliding_window", "size": WINDOW}],
        "speculative_config": {
            "method": "eagle", "num_speculative_tokens": num_speculative_tokens,
        },
    }  # fmt: skip


def read_after_giving_back(
    make_parts: Callable[[Config], Parts], num_speculative_tokens: int
) -> tuple[int, int]:
    """Blocks that a plan gives back and reads, and how many of those it gives to another request."""
    settings = config(num_speculative_tokens)
    run = AsyncRun({"seed": 0, "config": settings, "requests": REQUESTS}, make_parts(settings))
    tables: dict[str, list[int]] = {}
    in_flight: deque[_Plan] = deque()
    num_read = num_given = 0
    for each in run.calls():
        call: Any = each
        if call["call"] == "schedule":
            in_flight.append(_changes(tables, call))
            continue
        in_flight.popleft()
        # The plan that is the oldest now begins behind what the request has by now.
        for request_id, given_back in in_flight[0].given_back.items() if in_flight else ():
            request = run.live[request_id]
            first_read = request.num_tokens - WINDOW
            for place, block in given_back:
                if request.is_finished() or (place + 1) * BLOCK_SIZE <= first_read:
                    continue
                num_read += 1
                others = (i for i, taken in in_flight[0].taken.items() if block in taken)
                num_given += any(i != request_id for i in others)
    return num_read, num_given


def _changes(tables: dict[str, list[int]], call: Any) -> _Plan:
    """What the plan changed, and the tables after it, put into `tables`."""
    plan = _Plan()
    for request_id, (table,) in call["blocks"].items():
        before = tables.get(request_id, [])
        pairs = list(zip(before, table, strict=False))
        plan.given_back[request_id] = [(i, a) for i, (a, b) in enumerate(pairs) if a and not b]
        plan.taken[request_id] = [b for b in table[len(before) :] if b]
        tables[request_id] = list(table)
    for request_id in call["preempted"]:
        tables.pop(request_id, None)
    return plan
