"""Lab 02-07: what its tests share: traces, a manager that notes its calls, and who is under suspicion."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from course.learner.labs import find_root
from course.learner.mistakes import read_mistakes
from course.parity.traces import Arrival, Config, Trace, read_traces
from course.parity.turns import Turn, Turns, follow
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.core.kv_cache_utils import KVCacheBlock

HERE = Path(__file__).resolve().parent
GOLDEN = find_root(HERE) / "tests" / "golden" / "scheduler-0.22.1.jsonl.gz"
# Short ones, or the beginning of a longer one: seed and steps. Hits, chunks, preemptions, aborts, both
# policies, blocks of 1 to 16, with and without prefix caching.
SEEDS = {2: 34, 6: 36, 7: 82, 44: 100, 47: 44, 48: 112, 50: 87, 58: 89, 67: 58}
CONFIG: Config = {
    "block_size": 4,
    "num_blocks": 10,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "long_prefill_token_threshold": 0,
    "enable_prefix_caching": True,
    "max_model_len": 32,
    "policy": "fcfs",
}
EMPTY: Trace = {
    "seed": 0,
    "config": CONFIG,
    "requests": [],
    "steps": [],
    "outputs": {},
    "final": {},
    "preemptions": {},
}


@functools.cache
def traces() -> dict[int, tuple[Trace, list[Turns]]]:
    found = {trace["seed"]: trace for _, trace in read_traces(str(GOLDEN))}
    return {seed: (found[seed], follow(found[seed], most)) for seed, most in SEEDS.items()}


def reference(config: Config) -> KVCacheManager:
    return KVCacheManager(
        config["num_blocks"],
        config["block_size"],
        config["max_model_len"],
        config["enable_prefix_caching"],
    )


def arrival(request_id: str, prompt: list[int], max_tokens: int = 8) -> Arrival:
    return {
        "id": request_id,
        "step": 0,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "priority": 0,
        "abort": None,
    }


def turn(
    request_id: str,
    num_tokens: int = 1,
    *,
    admitted: bool = False,
    victims: tuple[str, ...] = (),
    fits: bool = True,
) -> Turn:
    return Turn(request_id, num_tokens, admitted, victims, fits)


class Noting:
    """A manager that gives what it is told to give, and notes what it is asked.

    `answers` are given one after the other by `allocate_slots`: True for a grant, in which no new block is,
    and False for None; after the last it grants. A look-up finds `hits` blocks of 4.
    """

    def __init__(self, answers: tuple[bool, ...] = (), hits: int = 0) -> None:
        self.answers = list(answers)
        self.hits = KVCacheBlocks([KVCacheBlock(1 + i) for i in range(hits)])
        self.calls: list[tuple[Any, ...]] = []

    def get_computed_blocks(self, request: Any) -> tuple[Any, int]:
        self.calls.append(("look up", request.request_id))
        return self.hits, 4 * len(self.hits.blocks)

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        full_sequence_must_fit: bool = False,
    ) -> Any:
        asked = num_new_tokens, num_new_computed_tokens, new_computed_blocks, full_sequence_must_fit
        self.calls.append(("allocate", request.request_id, *asked))
        return KVCacheBlocks(()) if not self.answers or self.answers.pop(0) else None

    def free(self, request: Any) -> None:
        self.calls.append(("free", request.request_id))

    def short(self) -> list[str]:
        """The calls in two words each."""
        return [f"{call[0]} {call[1]}" for call in self.calls]


def replay_of(lab: ModuleType, manager: Any, *ids: str, **config: Any) -> Any:
    """A replay with these requests in it, prompts of 10 tokens, on `manager`."""
    made = lab.Replay({**EMPTY, "config": {**CONFIG, **config}}, manager)
    for index, request_id in enumerate(ids):
        made.arrive(index, arrival(request_id, [5 + index] * 10))
    return made


def nothing_but(arrived: str, aborted: str) -> Turns:
    """A step before which one request arrives and one is aborted, and in which nobody has a turn."""
    decision: Any = {
        "scheduled": {},
        "preempted": [],
        "blocks": {},
        "running": [],
        "finished": {},
        "free": CONFIG["num_blocks"] - 1,
    }
    return Turns(((0, arrival(arrived, [5] * 10)),), (aborted,), (), {}, decision)


def forged(steps: list[Turns], at: int, **changes: Any) -> list[Turns]:
    """The steps, with the decision of one of them changed."""
    decision: Any = {**steps[at].decision, **changes}
    return [*steps[:at], replace(steps[at], decision=decision), *steps[at + 1 :]]


@functools.cache
def suspects(lab: ModuleType, make: Any) -> str:
    """Whose mistake it is, if a known wrong allocator gives the same blocks in every trace, up to the
    first difference and in it. To be printed, not asserted: a fingerprint holds what an assertion says, and
    must not go stale when a mistake is described in other words."""

    def differences(made: Any) -> list[Any]:
        return [lab.first_difference(trace, steps, made) for trace, steps in traces().values()]

    mine = differences(make)
    for mistake in read_mistakes(HERE):
        if "make_manager" not in mistake.change + mistake.append:
            continue
        if differences(mistake.load().make_manager) == mine:
            return f"An allocator with this mistake gives the same blocks: {mistake.name}"
    return ""
