"""What the lab's tests and scripts share: a manager with vLLM's names, a day at Noor's, what vLLM loaded.

The manager decides as vLLM's two do; a test of the engine compares them. The day is made by a few lines that
know the gate of admission and nothing of a model.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mini_vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

RECORDED = Path(__file__).resolve().parent / "recorded.json"
HASH_SEEDS = (0, 3, 5)
"""The values of PYTHONHASHSEED under which vLLM was recorded."""
FIVE = ([1, 2], [1, 3], [1], [3, 4], [4, 1])
"""Five steps on two slots: the adapters that each needs."""
TENANTS = 24
SLOTS = 8
SEATS = 16
LOAD_TICKS = 5
"""What a load takes, if a step takes one tick. An assumption: it depends on disk, bus and adapter."""


@dataclass(frozen=True)
class Request:
    """What of vLLM's `LoRARequest` a manager reads."""

    lora_int_id: int


class Manager:
    """Has the names that your fix needs of vLLM's `LRUCacheWorkerLoRAManager`.

    Args:
        max_loras: slots.
        max_cpu_loras: adapters in memory, those in slots among them; None: as many as there are slots.

    Attributes:
        loads: adapters read from disk, in order.
        fills: adapters put into a slot, in order.
    """

    def __init__(self, max_loras: int, max_cpu_loras: int | None = None) -> None:
        self.loads: list[int] = []
        self.fills: list[int] = []
        self._inner = LRUCacheWorkerLoRAManager[int, int](
            max_loras,
            max_loras if max_cpu_loras is None else max_cpu_loras,
            self._load,
            lambda slot, adapter: self.fills.append(adapter),
        )
        self._adapter_manager = SimpleNamespace(
            lora_slots=max_loras, lora_index_to_id=self._inner.lora_index_to_id
        )

    def _load(self, adapter: int) -> int:
        self.loads.append(adapter)
        return adapter

    def list_adapters(self) -> set[Any]:
        return set(self._inner.list_adapters())

    def add_adapter(self, lora_request: Any) -> bool:
        adapter = lora_request.lora_int_id
        self._inner.add_adapter(adapter, adapter)
        return True


Apply = Callable[[Any, Collection[Any]], None]


def walk_as_given(manager: Manager, lora_requests: Collection[Any]) -> None:
    """The pin: one after the other, in whatever order they come."""
    for lora_request in lora_requests:
        manager.add_adapter(lora_request)


def loads_of(
    apply: Apply, steps: Sequence[Sequence[int]], max_loras: int, max_cpu_loras: int | None = None
) -> list[int]:
    """How many adapters each step loads, the step's adapters handed over in the order given."""
    manager, loads = Manager(max_loras, max_cpu_loras), []
    for step in steps:
        before = len(manager.loads)
        apply(manager, [Request(adapter) for adapter in step])
        loads.append(len(manager.loads) - before)
    return loads


# ---- a day -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """The adapters that a step needs, those of running requests first, and how many requests it has."""

    adapters: tuple[int, ...]
    size: int


@cache
def day(seed: int = 1, num_steps: int = 600) -> tuple[Step, ...]:
    """A day of Noor's server. A running request gets a token in each step. A request whose adapter would be
    one too many waits, and those behind it may pass; no other is held up."""
    rng = random.Random(f"a day {seed}")
    weights = [1 / (1 + n) ** 0.5 for n in range(TENANTS)]
    tenants = rng.sample(range(1, TENANTS + 1), TENANTS)
    waiting: list[tuple[int, int]] = []
    running: list[tuple[int, int]] = []
    steps = []
    for _ in range(num_steps):
        for _ in range(3):
            if rng.random() < 0.1:
                waiting.append((rng.choices(tenants, weights)[0], rng.randint(15, 60)))
        adapters = dict.fromkeys(adapter for adapter, _ in running)
        left = []
        for adapter, length in waiting:
            fits = adapter in adapters or len(adapters) < SLOTS
            if fits and len(running) < SEATS:
                running.append((adapter, length))
                adapters[adapter] = None
            else:
                left.append((adapter, length))
        waiting = left
        if running:
            steps.append(Step(tuple(adapters), len(running)))
        running = [(adapter, length - 1) for adapter, length in running if length > 1]
    return tuple(steps)


def random_steps(seed: int) -> tuple[int, list[list[int]]]:
    """A number of slots, and forty steps of up to so many adapters, in a random order."""
    rng = random.Random(f"steps {seed}")
    max_loras = rng.randint(1, 5)
    return max_loras, [rng.sample(range(1, 9), rng.randint(1, max_loras)) for _ in range(40)]


# ---- what vLLM did ---------------------------------------------------------------------------------


@cache
def recorded() -> Any:
    """By PYTHONHASHSEED, of each of `FIVE` the order of the walk and what was loaded; and of the day's steps
    the number, walk and loads, those left out that walk as the step before and load nothing."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def recorded_day(hash_seed: int) -> list[tuple[list[int], list[int]]]:
    """Of each of the day's steps the order of vLLM's walk, and what it loaded."""
    kept = {now: (walk, loaded) for now, walk, loaded in recorded()["day"][str(hash_seed)]}
    steps: list[tuple[list[int], list[int]]] = []
    for now in range(len(day())):
        steps.append(kept[now] if now in kept else (steps[-1][0], []))
    return steps


# ---- the fewest loads ------------------------------------------------------------------------------


def fewest(steps: Sequence[Collection[int]], max_loras: int) -> int:
    """Of all ways to evict, the fewest loads: every choice is tried."""
    costs: dict[frozenset[int], int] = {frozenset(): 0}
    for step in steps:
        needed, reached = frozenset(step), dict[frozenset[int], int]()
        for resident, cost in costs.items():
            for kept in _ways_to_keep(resident - needed, max_loras - len(needed)):
                after = needed | kept
                total = cost + len(needed - resident)
                reached[after] = min(total, reached.get(after, total))
        costs = reached
    return min(costs.values())


def _ways_to_keep(idle: frozenset[int], room: int) -> Iterator[frozenset[int]]:
    for kept in itertools.combinations(sorted(idle), min(room, len(idle))):
        yield frozenset(kept)
