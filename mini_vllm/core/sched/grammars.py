"""What the scheduler does about grammars: fill rows for those who sample, move grammars on, end what fails.

The lines are those of `vllm/v1/core/sched/scheduler.py`. Waiting for a grammar is a rule at the gate
(`mini_vllm/structured_output/admission.py`). Nothing of it is called without a `structured_output_manager`.

A draft: synchronous scheduling only. Left out so far: drafts that the worker alone knows
(`vllm/v1/core/sched/scheduler.py:1713 Scheduler.update_draft_token_ids_in_output`), and reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.output import EngineCoreOutput, GrammarOutput, SchedulerOutput

if TYPE_CHECKING:
    from mini_vllm.core.sched.request_queue import RequestQueue


class GrammarSource(Protocol):
    """What is asked of `StructuredOutputManager`."""

    def grammar_init(self, request: Any) -> None: ...

    def grammar_bitmask(
        self,
        requests: Mapping[str, Any],
        structured_output_request_ids: Sequence[str],
        scheduled_spec_decode_tokens: Mapping[str, Sequence[int]],
    ) -> Any: ...


class GrammarScheduling:
    """`Scheduler`'s part about grammars.

    Attributes:
        structured_output_manager: compiles and fills; None: no request has a rule.
    """

    structured_output_manager: GrammarSource | None = None
    requests: dict[str, Request]
    skipped_waiting: RequestQueue

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """Rows for the requests with a rule that sample in this step; None where there are none
        (`vllm/v1/core/sched/scheduler.py:1259 Scheduler.get_grammar_bitmask`)."""
        if self.structured_output_manager is None:
            return None
        bound = {
            req_id: request.structured_output_request
            for req_id in scheduler_output.num_scheduled_tokens
            if (request := self.requests.get(req_id)) is not None
            and request.structured_output_request is not None
            and not request.is_prefill_chunk
        }
        if not bound:
            return None
        ids = list(bound)
        spec_tokens = scheduler_output.scheduled_spec_decode_tokens
        rows = self.structured_output_manager.grammar_bitmask(bound, ids, spec_tokens)
        return GrammarOutput(ids, rows)

    def _grammar_rejects(self, request: Request, new_token_ids: list[int]) -> bool:
        """Move the request's grammar on by what was sampled. True: it does not take that, and the request
        ends by an error (`vllm/v1/core/sched/scheduler.py:1416 in Scheduler.update_from_output`)."""
        grammar = request.structured_output_request.grammar
        if grammar.accept_tokens(request.request_id, new_token_ids):
            return False
        request.status = RequestStatus.FINISHED_ERROR
        request.stop_reason = f"the grammar rejected the tokens {new_token_ids}"
        return True

    def _keep_allowed(self, request: Request, spec_token_ids: list[int]) -> list[int]:
        """The drafts that the request's grammar allows
        (`vllm/v1/core/sched/scheduler.py:1708 in Scheduler.update_draft_token_ids`)."""
        grammar = request.structured_output_request.grammar
        allowed: list[int] = grammar.validate_tokens(spec_token_ids)
        return allowed

    def _end_failed_grammars(self) -> list[EngineCoreOutput]:
        """End the requests whose rules did not compile, each with the reason. Upstream has nothing of the
        kind: there the exception ends the engine."""
        if self.structured_output_manager is None or not self.skipped_waiting:
            return []
        failed = [
            request
            for request in self.skipped_waiting
            if request.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            and request.structured_output_request.is_settled
            and request.structured_output_request.error is not None
        ]
        outputs = []
        for request in failed:
            self.skipped_waiting.remove_request(request)
            request.status = RequestStatus.FINISHED_ERROR
            request.stop_reason = str(request.structured_output_request.error)
            self._free_request(request)
            reason = request.get_finished_reason()
            outputs.append(EngineCoreOutput(request.request_id, [], reason, request.stop_reason))
        return outputs

    def _free_request(self, request: Request) -> None:
        raise NotImplementedError  # `Scheduler` has it
