"""Adapters at the gate of admission: no step has more of them than there are slots."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mini_vllm.core.request import Request
from mini_vllm.core.sched.admission import Admission, AdmissionRule


class LoRAAdmission(AdmissionRule):
    """Skips a request whose adapter would be one too many; those behind it may pass
    (`vllm/v1/core/sched/scheduler.py:573 in Scheduler.schedule`).

    Running requests come first, so each keeps its slot to its end, and an adapter that waits may starve
    behind them.

    Args:
        max_loras: distinct adapters in a step.
    """

    def __init__(self, max_loras: int) -> None:
        self.max_loras = max_loras
        self.scheduled_loras: set[Hashable] = set()

    def start_step(self, scheduled_running_reqs: Sequence[Request]) -> None:
        self.scheduled_loras = {
            request.lora_request.slot_key
            for request in scheduled_running_reqs
            if request.lora_request is not None
        }
        assert len(self.scheduled_loras) <= self.max_loras

    def check(self, request: Request) -> Admission:
        full = len(self.scheduled_loras) == self.max_loras
        lora_request = request.lora_request
        if full and lora_request and lora_request.slot_key not in self.scheduled_loras:
            return Admission.SKIP
        return Admission.ADMIT

    def admit(self, request: Request, num_external_tokens: int) -> None:
        if request.lora_request is not None:
            self.scheduled_loras.add(request.lora_request.slot_key)
