"""Grammars at the gate of admission: a request waits for its own, and those behind it may pass."""

from __future__ import annotations

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.admission import AdmissionRule


class GrammarAdmission(AdmissionRule):
    """(`vllm/v1/core/sched/scheduler.py:2118 in Scheduler._try_promote_blocked_waiting_request`)"""

    blocked_status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

    def is_ready(self, request: Request) -> bool:
        """Whether the grammar is there. Where compiling has failed it never will be: the scheduler ends
        the request when it takes in the step's result."""
        structured = request.structured_output_request
        return structured is not None and structured.is_grammar_ready
