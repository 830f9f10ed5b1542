"""Which adapters are in memory, and which of them in a slot: two caches, both by latest use.

Mirrors what `vllm/lora/worker_manager.py:231 LRUCacheWorkerLoRAManager` and
`vllm/lora/model_manager.py:1163 LRUCacheLoRAModelManager` decide: the same loads and the same slots for the
same steps in the same order. Upstream the order within a step is a set's, so it changes from run to run. Left
out: pinning, removing on demand, `load_inplace` (what is read anew has another key here).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

Request = TypeVar("Request")
Adapter = TypeVar("Adapter")


class LRUCacheWorkerLoRAManager(Generic[Request, Adapter]):
    """Registered adapters, in memory, and active ones, each in a slot.

    An adapter goes out before those are touched that the same step still needs, as upstream: one of them may
    have to be loaded again. Whether it does, the order of the step's adapters decides (lab 11-06).

    Args:
        max_loras: slots.
        max_cpu_loras: adapters in memory, those in slots among them.
        load: gets an adapter.
        set_slot: told of each slot that is filled anew.

    Attributes:
        lora_index_to_id: the slots; None: free.
    """

    def __init__(
        self,
        max_loras: int,
        max_cpu_loras: int,
        load: Callable[[Request], Adapter],
        set_slot: Callable[[int, Adapter], None],
    ) -> None:
        self.max_cpu_loras = max_cpu_loras
        self.lora_index_to_id: list[Hashable | None] = [None] * max_loras
        self._load = load
        self._set_slot = set_slot
        self._registered: OrderedDict[Hashable, Adapter] = OrderedDict()  # used last at the end
        self._active: OrderedDict[Hashable, None] = OrderedDict()

    def list_adapters(self) -> list[Hashable]:
        """Those in memory, the longest unused first."""
        return list(self._registered)

    def list_registered(self) -> list[Adapter]:
        """The adapters themselves, in the same order."""
        return list(self._registered.values())

    def set_active_adapters(self, requests: Mapping[Hashable, Request]) -> None:
        """Bring a step's adapters, by key, into slots.

        Raises RuntimeError if they are more than there are slots
        (`vllm/lora/worker_manager.py:258 LRUCacheWorkerLoRAManager._apply_adapters`).
        """
        if len(requests) > len(self.lora_index_to_id):
            raise RuntimeError(
                f"a step has {len(requests)} adapters, and there are {len(self.lora_index_to_id)} slots"
            )
        for key, request in requests.items():
            self.add_adapter(key, request)

    def add_adapter(self, key: Hashable, request: Request) -> None:
        """Bring one into memory and into a slot, or touch it there
        (`vllm/lora/worker_manager.py:273 LRUCacheWorkerLoRAManager.add_adapter`)."""
        if key not in self._registered:
            adapter = self._load(request)
            if len(self._registered) == self.max_cpu_loras:
                oldest, _ = self._registered.popitem(last=False)
                self._deactivate(oldest)
            self._registered[key] = adapter
        self._registered.move_to_end(key)
        self._activate(key)

    def _activate(self, key: Hashable) -> None:
        """(`vllm/lora/model_manager.py:1208 LRUCacheLoRAModelManager.activate_adapter`)"""
        if key not in self._active:
            if len(self._active) == len(self.lora_index_to_id):
                self._deactivate(next(iter(self._active)))
            index = self.lora_index_to_id.index(None)
            self.lora_index_to_id[index] = key
            self._active[key] = None
            self._set_slot(index, self._registered[key])
        self._active.move_to_end(key)

    def _deactivate(self, key: Hashable) -> None:
        if key in self._active:
            del self._active[key]
            self.lora_index_to_id[self.lora_index_to_id.index(key)] = None
