"""Lab 11-06: one load too many. One way to do it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


def predictions() -> dict[str, Any]:
    """The answers to the README's six questions."""
    return {
        "newcomer": (1, 2),
        "chain": (1, 8),
        "room in memory": (1, 2),
        "still luck": (3, 4),
        "far sight": (5, 4),
        "cliff": (6, 1),
    }


# ---- what the pin does -----------------------------------------------------------------------------


def pinned_step(resident: list[int], walk: Sequence[int], max_loras: int) -> list[int]:
    """Touch what is there; for anything else the one used longest ago goes, needed or not."""
    loaded = []
    for adapter in walk:
        if adapter in resident:
            resident.remove(adapter)
        else:
            loaded.append(adapter)
            if len(resident) == max_loras:
                resident.pop(0)
        resident.append(adapter)
    return loaded


# ---- the fix ---------------------------------------------------------------------------------------


def requests_by_id(manager: Any, lora_requests: Collection[Any]) -> dict[int, Any]:
    """Given: the step's requests by id, as vLLM's method begins.

    Raises RuntimeError if they are more than there are slots.
    """
    by_id = {lora_request.lora_int_id: lora_request for lora_request in lora_requests}
    num_slots = len(manager._adapter_manager.lora_index_to_id)
    if len(by_id) > num_slots:
        raise RuntimeError(f"a step needs {len(by_id)} adapters, and there are {num_slots} slots")
    return by_id


def apply_adapters(manager: Any, lora_requests: Collection[Any]) -> None:
    """What is in a slot first, then what is in memory, then the rest."""
    by_id = requests_by_id(manager, lora_requests)
    slots = manager._adapter_manager.lora_index_to_id
    in_memory = manager.list_adapters()
    for adapter in sorted(by_id, key=lambda n: (n not in slots, n not in in_memory, n)):
        manager.add_adapter(by_id[adapter])


# ---- the optimum -----------------------------------------------------------------------------------


def next_use(steps: Sequence[Collection[int]], now: int, adapter: int) -> int:
    """The first step after `now` that needs the adapter; the number of steps if none does."""
    for later in range(now + 1, len(steps)):
        if adapter in steps[later]:
            return later
    return len(steps)


def optimum(steps: Sequence[Collection[int]], max_loras: int) -> list[int]:
    """Of those that the step does not need, keep the ones needed soonest."""
    resident: set[int] = set()
    loads = []
    for now, step in enumerate(steps):
        needed = set(step)
        loads.append(len(needed - resident))
        uses = {adapter: next_use(steps, now, adapter) for adapter in resident - needed}
        idle = sorted(uses, key=uses.__getitem__)
        resident = needed | set(idle[: max_loras - len(needed)])
    return loads


# ---- the price -------------------------------------------------------------------------------------


def gaps(sizes: Sequence[int], loads: Sequence[int], load_ticks: int) -> list[int]:
    """Every request of a step waits for all of its loads."""
    waited = []
    for size, num_loads in zip(sizes, loads, strict=True):
        waited += [1 + load_ticks * num_loads] * size
    return waited


def p99(values: Sequence[int]) -> int:
    """The smallest that 99 of 100 do not exceed."""
    return sorted(values)[-(-99 * len(values) // 100) - 1]
