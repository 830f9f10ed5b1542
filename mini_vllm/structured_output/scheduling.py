"""Grammars in the engine's step: compile, wait, fill rows for those who sample, move on, end what fails.

The lines are those of `vllm/v1/core/sched/scheduler.py` and `vllm/v1/engine/core.py`; waiting for a grammar
is a rule at the gate (`admission.py`). Scheduler and core hold one `GrammarScheduling` from the first request
with a rule on, and none before. Left out: reasoning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any, Protocol, Self

import numpy as np

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.admission import AdmissionGate
from mini_vllm.core.sched.output import DraftTokenIds, EngineCoreOutput, SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.structured_output.admission import GrammarAdmission
from mini_vllm.structured_output.backend_types import BackendConfig, Bitmask
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.request import StructuredOutputRequest, describe_rule
from mini_vllm.structured_output.utils import GrammarOutput
from mini_vllm.tokenizer.tokenizer import Tokenizer
from mini_vllm.utils.untrusted import one_line

SECONDS_TO_WAIT = 0.001
"""What a step without tokens gives the compilers, so that the loop does not turn hot. Upstream it sleeps as
long (`vllm/v1/engine/core.py:1249 in EngineCoreProc._process_engine_step`)."""


class GrammarSource(Protocol):
    """What is asked of `StructuredOutputManager`."""

    def grammar_init(self, request: StructuredOutputRequest) -> None: ...

    def grammar_bitmask(
        self,
        requests: Mapping[str, StructuredOutputRequest],
        structured_output_request_ids: Sequence[str],
        scheduled_spec_decode_tokens: Mapping[str, Sequence[int]],
    ) -> Bitmask | None: ...

    def shutdown(self) -> None: ...


class GrammarScheduling:
    """The grammars of a scheduler's requests.

    Args:
        scheduler: gets this object and a rule at its gate.
        manager: compiles and fills.

    Attributes:
        num_invalid_spec_tokens: by request, how many of its drafts in flight are barred.

    Raises ValueError for a scheduler that takes a step's result in by code of its own: it would never move a
    grammar on.
    """

    def __init__(self, scheduler: Scheduler, manager: GrammarSource) -> None:
        if "mini_vllm." not in getattr(type(scheduler).update_from_output, "__module__", ""):
            raise ValueError(
                f"structured_outputs: {type(scheduler).__module__}.{type(scheduler).__name__} has an "
                "update_from_output of its own, which moves no grammar on"
            )
        self.scheduler = scheduler
        self.manager = manager
        self._compiling: dict[str, Request] = {}
        self.num_invalid_spec_tokens: dict[str, int] = {}
        self._broken: dict[str, BaseException] = {}  # by request, what filling its rows has raised
        scheduler.grammars = self
        scheduler.admission = AdmissionGate([GrammarAdmission(), *scheduler.admission.rules])

    @classmethod
    def make(
        cls,
        scheduler: Scheduler,
        config: ResolvedConfig,
        vocab_size: int,
        tokenizer: Tokenizer | Callable[[], Tokenizer] | None,
    ) -> Self:
        """With the manager for these settings. Raises ValueError where there is no tokenizer."""
        if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
            tokenizer = tokenizer()
        if tokenizer is None:
            raise ValueError("structured_outputs needs a tokenizer, and this engine has none")
        asked = config.structured_outputs or StructuredOutputsConfig()
        manager = StructuredOutputManager(
            tokenizer,
            vocab_size,
            config.max_num_seqs,
            BackendConfig(
                asked.disable_any_whitespace,
                asked.disable_additional_properties,
                config.speculation.num_spec_tokens if config.speculation is not None else 0,
            ),
            in_background=not config.is_launched,
        )
        return cls(scheduler, manager)

    # -- requests come and go ---------------------------------------------------------------------

    def init(self, request: Request) -> None:
        """Start to compile a new request's rule, and let it wait
        (`vllm/v1/engine/core.py:815 in EngineCore.preprocess_add_request`)."""
        params = request.sampling_params.structured_outputs
        assert params is not None
        structured = StructuredOutputRequest(params)
        self.manager.grammar_init(structured)
        request.structured_output_request = structured
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        self._compiling[request.request_id] = request

    def end_failed(self) -> list[EngineCoreOutput]:
        """End the requests whose rules did not compile, each with the reason. Upstream has nothing of the
        kind: there the exception ends the engine."""
        outputs: list[EngineCoreOutput] = []
        for req_id, request in list(self._compiling.items()):
            structured = request.structured_output_request
            if self.scheduler.requests.get(req_id) is request:
                if not structured.is_settled:
                    continue
                if structured.error is not None:
                    scheduler = self.scheduler
                    request.stop_reason = str(structured.error)
                    scheduler.finish_requests(req_id, RequestStatus.FINISHED_ERROR)
                    reason = request.get_finished_reason()
                    outputs.append(EngineCoreOutput(req_id, [], reason, request.stop_reason))
            del self._compiling[req_id]
        return outputs

    def shutdown(self) -> None:
        """End what compiles (`vllm/v1/engine/core.py:598 in EngineCore.shutdown`)."""
        self.manager.shutdown()

    # -- a step -----------------------------------------------------------------------------------

    def execute_model(
        self, execute_model: Callable[..., Any], scheduler_output: SchedulerOutput
    ) -> tuple[Any, GrammarOutput | None]:
        """Run the model, and fill the rows of the step meanwhile
        (`vllm/v1/engine/core.py:440 in EngineCore.step`). A step without tokens lets the compilers get on.

        Returns what `execute_model` gave, and the rows.
        """
        if not self._get_bound(scheduler_output):
            if not scheduler_output.num_scheduled_tokens:
                self.wait()
            return execute_model(scheduler_output), None
        future = execute_model(scheduler_output, non_block=True)
        grammar_output = self.get_grammar_bitmask(scheduler_output)
        return future.result(), grammar_output

    def wait(self) -> None:
        """Where requests wait for their grammars, and nothing else is to be done: let one get ready, for a
        thousandth of a second at most."""
        futures = [r.structured_output_request.future for r in self._compiling.values()]
        unsettled = [future for future in futures if future is not None]
        if unsettled:
            wait(unsettled, SECONDS_TO_WAIT, FIRST_COMPLETED)

    def _get_bound(self, scheduler_output: SchedulerOutput) -> dict[str, StructuredOutputRequest]:
        """Of the requests with a rule, those that sample in this step."""
        requests = self.scheduler.requests
        return {
            req_id: request.structured_output_request
            for req_id in scheduler_output.num_scheduled_tokens
            if (request := requests.get(req_id)) is not None
            and request.structured_output_request is not None
            and not request.is_prefill_chunk
        }

    def get_grammar_bitmask(
        self,
        scheduler_output: SchedulerOutput,
        take_draft_token_ids: Callable[[list[str]], DraftTokenIds | None] | None = None,
    ) -> GrammarOutput | None:
        """Rows for the requests with a rule that sample in this step; None where there are none
        (`vllm/v1/core/sched/scheduler.py:1259 Scheduler.get_grammar_bitmask`).

        Args:
            take_draft_token_ids: gives the drafts of requests that have places for them, as in a plan ahead.
        """
        bound = self._get_bound(scheduler_output)
        if not bound:
            return None
        spec_tokens: Mapping[str, Sequence[int]] = scheduler_output.scheduled_spec_decode_tokens
        if places := [req_id for req_id in bound if -1 in spec_tokens.get(req_id, ())]:
            assert take_draft_token_ids is not None, "a plan ahead has places for drafts"
            drafts = take_draft_token_ids(places)
            spec_tokens = self._update_drafts(spec_tokens, bound, drafts)
        try:
            rows = self.manager.grammar_bitmask(bound, list(bound), spec_tokens)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # what a library written in Rust raises is no Exception
            rows = self._fill_one_by_one(bound, spec_tokens)
        assert rows is not None
        return GrammarOutput(list(bound), rows, spec_tokens)

    def _fill_one_by_one(
        self,
        bound: Mapping[str, StructuredOutputRequest],
        spec_tokens: Mapping[str, Sequence[int]],
    ) -> Bitmask:
        """The rows, where filling some has failed: those are free, and their requests end with the step.
        Upstream the engine ends."""
        parts: list[Bitmask | None] = []
        for req_id in bound:
            try:
                parts.append(self.manager.grammar_bitmask(bound, [req_id], spec_tokens))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                self._broken[req_id] = error
                parts.append(None)
        width = next((part.shape[1] for part in parts if part is not None), 1)
        return np.concatenate(
            [
                np.full((1 + len(spec_tokens.get(req_id, ())), width), -1, np.int32)
                if part is None
                else part
                for req_id, part in zip(bound, parts, strict=True)
            ]
        )

    def _update_drafts(
        self,
        spec_tokens: Mapping[str, Sequence[int]],
        bound: Mapping[str, StructuredOutputRequest],
        draft_token_ids: DraftTokenIds | None,
    ) -> dict[str, Sequence[int]]:
        """A plan's drafts, in which the places of a request with a rule have become tokens: those that its
        grammar allows, and -1 for the rest. The worker checks them all the same, and rejects these
        (`vllm/v1/core/sched/scheduler.py:1713 Scheduler.update_draft_token_ids_in_output`).

        The plan itself stays as it is: the worker may be reading it.
        """
        drafts: dict[str, list[int]] = {}
        if draft_token_ids is not None:
            drafts = dict(
                zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True)
            )
        updated = dict(spec_tokens)
        for req_id, structured in bound.items():
            places = spec_tokens.get(req_id)
            if not places:
                continue
            # Where the worker has no draft, it checks token 0.
            tokens = [*drafts.get(req_id, ()), *[0] * len(places)][: len(places)]
            allowed = self._validate(req_id, structured, tokens)
            num_invalid_tokens = len(places) - len(allowed)
            updated[req_id] = [*allowed, *[-1] * num_invalid_tokens]
            self.num_invalid_spec_tokens[req_id] = num_invalid_tokens
        return updated

    def is_pending(self, scheduler_output: SchedulerOutput) -> bool:
        """Whether rows of this plan, just made, depend on tokens in flight
        (`vllm/v1/core/sched/async_scheduler.py:27 in AsyncScheduler._update_after_schedule`)."""
        spec_tokens = scheduler_output.scheduled_spec_decode_tokens
        return any(
            self.scheduler.requests[r].num_output_placeholders > 1 + len(spec_tokens.get(r, ()))
            for r in self._get_bound(scheduler_output)
        )

    def rejects(self, request: Request, new_token_ids: list[int]) -> bool:
        """Move the request's grammar on by what was sampled. True: it does not take that, and the request
        ends by an error (`vllm/v1/core/sched/scheduler.py:1416 in Scheduler.update_from_output`)."""
        structured = request.structured_output_request
        error = self._broken.pop(request.request_id, None)
        if error is None:
            try:
                if structured.grammar.accept_tokens(request.request_id, new_token_ids):
                    return False
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as failure:
                error = failure
        request.status = RequestStatus.FINISHED_ERROR
        request.stop_reason = f"the grammar rejected the tokens {new_token_ids}"
        if error is not None:
            rule = describe_rule(structured.structured_output_key)
            reason = one_line(f"{type(error).__name__} {error}")
            request.stop_reason = f"{rule}: the grammar failed: {reason}"
        return True

    def keep_allowed(self, request: Request, spec_token_ids: list[int]) -> list[int]:
        """The drafts that the request's grammar allows, up to the first that it bars
        (`vllm/v1/core/sched/scheduler.py:1708 in Scheduler.update_draft_token_ids`)."""
        structured = request.structured_output_request
        return self._validate(request.request_id, structured, spec_token_ids)

    def _validate(
        self, req_id: str, structured: StructuredOutputRequest, tokens: list[int]
    ) -> list[int]:
        assert structured.grammar is not None
        try:
            return structured.grammar.validate_tokens(tokens)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._broken[req_id] = error
            return []
