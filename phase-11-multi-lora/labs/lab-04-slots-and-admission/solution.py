"""Lab 11-04: slots and admission. One way to do it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from mini_vllm.core.request import Request
from mini_vllm.core.sched.admission import Admission, AdmissionRule


def predictions() -> dict[str, Any]:
    """The answers to the README's six questions."""
    return {
        "first step": [1, 2, 3, 5, 6, 8],
        "four places": [1, 2, 3, 5],
        "skip": (25, 2),
        "barrier": (11, 11),
        "by default": (6, 6),
        "three in memory": (3, 6),
    }


# ---- the slots -----------------------------------------------------------------------------------


class SlotManager:
    """Adapters in memory and adapters in slots, both ordered by latest use."""

    def __init__(
        self,
        max_loras: int,
        max_cpu_loras: int,
        load: Callable[[Hashable], Any],
        set_slot: Callable[[int, Any], None],
    ) -> None:
        self.max_cpu_loras = max_cpu_loras
        self.load = load
        self.set_slot = set_slot
        self.lora_index_to_id: list[Hashable | None] = [None] * max_loras
        self.registered: OrderedDict[Hashable, Any] = OrderedDict()
        self.active: OrderedDict[Hashable, int] = OrderedDict()

    def list_adapters(self) -> list[Hashable]:
        """Those in memory, the longest unused first."""
        return list(self.registered)

    def set_active_adapters(self, ids: Iterable[Hashable]) -> None:
        """Bring a step's adapters into slots."""
        wanted = list(ids)
        slots = len(self.lora_index_to_id)
        if len(wanted) > slots:
            raise RuntimeError(
                f"a step asks for {len(wanted)} adapters and there are {slots} slots"
            )
        for adapter_id in wanted:
            self.add_adapter(adapter_id)

    def add_adapter(self, adapter_id: Hashable) -> None:
        """Load what is not in memory, then evict, then activate."""
        if adapter_id not in self.registered:
            adapter = self.load(adapter_id)
            if len(self.registered) >= self.max_cpu_loras:
                self.remove_adapter(next(iter(self.registered)))
            self.registered[adapter_id] = adapter
        self.registered.move_to_end(adapter_id)
        self.activate_adapter(adapter_id)

    def activate_adapter(self, adapter_id: Hashable) -> None:
        """Give an adapter in memory a slot, if it has none."""
        if adapter_id not in self.active:
            if len(self.active) >= len(self.lora_index_to_id):
                self.deactivate_adapter(next(iter(self.active)))
            index = self.lora_index_to_id.index(None)
            self.lora_index_to_id[index] = adapter_id
            self.active[adapter_id] = index
            self.set_slot(index, self.registered[adapter_id])
        self.active.move_to_end(adapter_id)

    def deactivate_adapter(self, adapter_id: Hashable) -> None:
        """Free an adapter's slot, if it has one; it stays in memory."""
        if adapter_id in self.active:
            index = self.active.pop(adapter_id)
            self.lora_index_to_id[index] = None

    def remove_adapter(self, adapter_id: Hashable) -> bool:
        """Take an adapter out of its slot and out of memory."""
        if adapter_id not in self.registered:
            return False
        self.deactivate_adapter(adapter_id)
        del self.registered[adapter_id]
        return True


# ---- the gate ------------------------------------------------------------------------------------


class LoRAGate(AdmissionRule):
    """No step has more adapters than there are slots."""

    def __init__(self, max_loras: int) -> None:
        self.max_loras = max_loras
        self.scheduled: set[int] = set()

    def start_step(self, scheduled_running_reqs: Sequence[Request]) -> None:
        """The running requests' adapters are in the step already."""
        self.scheduled = {
            request.lora_request.lora_int_id
            for request in scheduled_running_reqs
            if request.lora_request is not None
        }

    def check(self, request: Request) -> Admission:
        """Skip a request whose adapter would be one too many."""
        lora_request = request.lora_request
        if lora_request is None or lora_request.lora_int_id in self.scheduled:
            return Admission.ADMIT
        if len(self.scheduled) >= self.max_loras:
            return Admission.SKIP
        return Admission.ADMIT

    def admit(self, request: Request, num_external_tokens: int) -> None:
        """The request runs, so its adapter is in the step."""
        if request.lora_request is not None:
            self.scheduled.add(request.lora_request.lora_int_id)
