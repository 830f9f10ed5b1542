"""What a trace says of rules: what each allowed and forced, and who waits for a rule to be compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.core.request import Request, RequestStatus
from mini_vllm.core.sched.output import NewRequestData, SchedulerOutput
from mini_vllm.trace.types import RequestStep
from mini_vllm.utils.untrusted import shorten_repr

if TYPE_CHECKING:
    from mini_vllm.engine.core import EngineCore


@dataclass(frozen=True)
class _Rule:
    """One request's rule in one step, before the step's tokens."""

    state: str
    num_allowed_tokens: list[int]


class RuleRecorder:
    """Listens to the rows that a core's grammars fill. A core without grammars is left as it is, until a
    request with a rule makes it have some.

    Attributes:
        vocab_size: None before the first rule.
    """

    def __init__(self, core: EngineCore) -> None:
        self.vocab_size: int | None = None
        self._core = core
        self._steps: dict[int, dict[str, _Rule]] = {}
        self._make = core.make_grammars
        self._grammars: Any = None
        if core.grammars is not None:
            self._listen(core.grammars)
        else:
            core.make_grammars = self._make_grammars  # type: ignore[assignment]

    def detach(self) -> None:
        """Leave the core as it was."""
        if self._grammars is None:
            self._core.make_grammars = self._make
        else:
            del self._grammars.get_grammar_bitmask

    def _make_grammars(self) -> Any:
        self._core.make_grammars = self._make
        grammars = self._make()
        self._listen(grammars)
        return grammars

    def _listen(self, grammars: Any) -> None:
        self._grammars = grammars
        self.vocab_size = grammars.manager.vocab_size
        fill = grammars.get_grammar_bitmask

        def fill_and_note(scheduler_output: SchedulerOutput, *args: Any) -> Any:
            rows = fill(scheduler_output, *args)
            if rows is not None:
                self._steps[id(scheduler_output)] = self._read(rows, scheduler_output)
            return rows

        grammars.get_grammar_bitmask = fill_and_note

    def _read(self, rows: Any, scheduler_output: SchedulerOutput) -> dict[str, _Rule]:
        requests, drafts = (
            self._core.scheduler.requests,
            scheduler_output.scheduled_spec_decode_tokens,
        )
        bits = np.unpackbits(rows.grammar_bitmask.view(np.uint8), axis=1, bitorder="little")
        counts = bits[:, : self.vocab_size].sum(axis=1, dtype=np.int64).tolist()
        found: dict[str, _Rule] = {}
        for request_id in rows.structured_output_request_ids:
            here, counts = np.split(counts, [1 + len(drafts.get(request_id, ()))])
            grammar = requests[request_id].structured_output_request.grammar
            found[request_id] = _Rule(grammar.describe_state(), [int(count) for count in here])
        return found

    def tell(self, part: RequestStep, scheduler_output: SchedulerOutput) -> None:
        """Fill in what the request's rule did in this step, if that is known by now."""
        rule = self._steps.get(id(scheduler_output), {}).get(part.request_id)
        if rule is not None:
            part.rule_state, part.num_allowed_tokens = rule.state, rule.num_allowed_tokens

    def forget(self, scheduler_output: SchedulerOutput) -> None:
        """The step is over."""
        self._steps.pop(id(scheduler_output), None)


def describe(request: Request | NewRequestData) -> str | None:
    """The request's rule in words; None where it is free."""
    params = request.sampling_params.structured_outputs
    if params is None:
        return None
    from mini_vllm.structured_output.request import get_structured_output_key

    kind, text = get_structured_output_key(params)
    name = kind.name.lower()
    return f"{name} {shorten_repr(text)}" if text else name


def why_skipped(request: Request) -> str:
    """What a request waits for that is not room."""
    if request.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        return "its rule is not compiled yet"
    if request.lora_request is not None:
        return f"the step has no slot left for its adapter {request.lora_request.lora_name}"
    return "a rule at the gate of admission keeps it back"
