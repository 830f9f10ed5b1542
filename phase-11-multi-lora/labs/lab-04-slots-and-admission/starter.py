"""Lab 11-04: slots and admission. Your work: every NotImplementedError."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from mini_vllm.core.request import Request
from mini_vllm.core.sched.admission import Admission, AdmissionRule


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names given there."""
    raise NotImplementedError


# ---- the slots -----------------------------------------------------------------------------------


class SlotManager:
    """Adapters in memory (registered) and adapters in slots (active), both ordered by latest use.

    Every active adapter is registered, too. An adapter is known by its id.

    Attributes:
        lora_index_to_id: the slots; None is a free one. Read by the tests and the engine.
        registered: the adapters in memory, by id, the longest unused first.
        active: by id the slot of each active adapter, the longest unused first.
    """

    def __init__(
        self,
        max_loras: int,
        max_cpu_loras: int,
        load: Callable[[Hashable], Any],
        set_slot: Callable[[int, Any], None],
    ) -> None:
        """Given.

        Args:
            max_loras: slots.
            max_cpu_loras: adapters in memory at most, those in slots among them; at least `max_loras`.
            load: `load(id)` reads an adapter from disk and returns it; raises if it cannot.
            set_slot: `set_slot(index, adapter)` copies an adapter from memory into a slot.
        """
        self.max_cpu_loras = max_cpu_loras
        self.load = load
        self.set_slot = set_slot
        self.lora_index_to_id: list[Hashable | None] = [None] * max_loras
        self.registered: OrderedDict[Hashable, Any] = OrderedDict()
        self.active: OrderedDict[Hashable, int] = OrderedDict()

    def list_adapters(self) -> list[Hashable]:
        """Given: those in memory, the longest unused first."""
        return list(self.registered)

    def set_active_adapters(self, ids: Iterable[Hashable]) -> None:
        """Bring a step's adapters into slots: `add_adapter` for each, in the order in which they come.

        Args:
            ids: of the step's adapters, each once.

        Raises RuntimeError if there are more of them than slots; then nothing has been loaded or changed.
        """
        raise NotImplementedError

    def add_adapter(self, adapter_id: Hashable) -> None:
        """Make an adapter the latest used one in memory, read from disk if it is not there, and activate it.

        If `load` raises, its error goes to the caller, and nothing has changed.
        """
        raise NotImplementedError

    def activate_adapter(self, adapter_id: Hashable) -> None:
        """Make an adapter the latest used of the active; if it has no slot, it gets one first.

        Args:
            adapter_id: of an adapter that is registered.
        """
        raise NotImplementedError

    def remove_adapter(self, adapter_id: Hashable) -> bool:
        """Take an adapter out of memory, and out of its slot if it has one, which is free then.

        Returns:
            Whether it was in memory. If not, nothing changes.
        """
        raise NotImplementedError


# ---- the gate ------------------------------------------------------------------------------------


class LoRAGate(AdmissionRule):
    """No step has more adapters than there are slots.

    `request.lora_request` is None if the request has no adapter. Otherwise
    `request.lora_request.lora_int_id` is the adapter's id. `Admission.ADMIT` lets the request pass, `SKIP`
    only those behind it, `STOP` none of them.
    """

    def __init__(self, max_loras: int) -> None:
        """A gate for steps with at most `max_loras` adapters."""
        raise NotImplementedError

    def start_step(self, scheduled_running_reqs: Sequence[Request]) -> None:
        """Called once per step, before any `check`.

        Args:
            scheduled_running_reqs: the running requests that are in this step already.
        """
        raise NotImplementedError

    def check(self, request: Request) -> Admission:
        """Decide about the next waiting request, and note nothing."""
        raise NotImplementedError

    def admit(self, request: Request, num_external_tokens: int) -> None:
        """Called when a request that has passed `check` is in the step.

        Args:
            request: the one that was checked last.
            num_external_tokens: of no use to this gate.
        """
        raise NotImplementedError
