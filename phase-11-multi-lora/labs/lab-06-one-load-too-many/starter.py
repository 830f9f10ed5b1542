"""Lab 11-06: one load too many. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names given there."""
    raise NotImplementedError


# ---- what the pin does -----------------------------------------------------------------------------


def pinned_step(resident: list[int], walk: Sequence[int], max_loras: int) -> list[int]:
    """One step at the pin, where memory has room for as many adapters as there are slots.

    Args:
        resident: the adapters that are loaded, the one used longest ago first. Change it in place.
        walk: the step's adapters, each once, in the order in which vLLM takes them; at most `max_loras`.

    Returns:
        The adapters that were loaded, in order; one may have been thrown out by this very step.
    """
    raise NotImplementedError


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
    """vLLM's `LRUCacheWorkerLoRAManager._apply_adapters`, mended. `manager` is its `self`.

    Begin with `requests_by_id`. What follows at the pin is: for each request, `add_adapter`.

    Args:
        manager: vLLM's, or `Manager` of support.py. Three things of it are enough:
            `manager.list_adapters()`: the ids in memory, a set made anew at each call;
            `manager._adapter_manager.lora_index_to_id`: the id in each slot, None where it is free; this is
            the list itself, and changes;
            `manager.add_adapter(lora_request)`: what the README's "One adapter" says.
        lora_requests: the step's, in vLLM a set, here in any order. Each has its id as `lora_int_id`.

    Afterwards each is in a slot. The step has loaded only what was not in memory, and filled only as many
    slots as it needs adapters that were in none; and neither depends on the order of `lora_requests`, now or
    in later steps. What you are otherwise free to choose goes by id, the smaller one first.
    """
    raise NotImplementedError


# ---- the optimum -----------------------------------------------------------------------------------


def optimum(steps: Sequence[Collection[int]], max_loras: int) -> list[int]:
    """How many adapters each step loads if all steps are known beforehand and as few are loaded as can be.

    At first none is loaded. A step's adapters are all there at once, and beside them those that were kept, up
    to `max_loras` in all. None is loaded before a step needs it.

    Args:
        steps: the adapters that each step needs, at most `max_loras`.
    """
    raise NotImplementedError


# ---- the price -------------------------------------------------------------------------------------


def gaps(sizes: Sequence[int], loads: Sequence[int], load_ticks: int) -> list[int]:
    """For each request of each step the ticks that the step took: what its token had to wait for.

    Args:
        sizes: how many requests each step has.
        loads: how many adapters each step loads, one after the other, before it computes for one tick.
        load_ticks: what one load takes.

    Returns:
        As many numbers as there are tokens; their order does not matter.
    """
    raise NotImplementedError


def p99(values: Sequence[int]) -> int:
    """The smallest of the values that at least 99 % of them do not exceed. There is at least one."""
    raise NotImplementedError
