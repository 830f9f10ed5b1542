"""Lab 12-05: grammar under speculation. One way to do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


def predictions() -> dict[str, Any]:
    """The answers to the README's six questions."""
    return {
        "kept": 2,
        "text": "KX-117",
        "ends": (3, 2),
        "unknown": (5, 3),
        "all right": (3, 8),
        "waits": ["d", "f"],
    }


class Grammar(Protocol):
    """A compiled rule and the state it is in, as xgrammar's matcher."""

    def accept_token(self, token: int) -> bool: ...
    def rollback(self, num_tokens: int) -> None: ...
    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None: ...
    def is_terminated(self) -> bool: ...


def filter_drafts(grammar: Grammar, drafts: Sequence[int]) -> list[int]:
    """The longest beginning of the drafts that the grammar allows."""
    kept: list[int] = []
    for token in drafts:
        if not grammar.accept_token(token):  # -1 neither
            break
        kept.append(token)
    grammar.rollback(len(kept))
    return kept


def fill_rows(grammar: Grammar, drafts: Sequence[int], bitmask: NDArray[np.int32], row: int) -> int:
    """Fill a request's rows; returns the row after them."""
    advanced, known = 0, True
    for token in [*drafts, -1]:
        if known and not grammar.is_terminated():
            grammar.fill_bitmask(bitmask, row)
        else:
            bitmask[row] = -1
        row += 1
        known = known and token != -1
        if known and grammar.accept_token(token):
            advanced += 1
    grammar.rollback(advanced)
    return row


def accept(
    grammar: Grammar, drafts: Sequence[int], chosen: Sequence[int], end: int, most: int
) -> list[int]:
    """Verify, stop, and move the grammar on by what the request gets."""
    new: list[int] = []
    for place, token in enumerate(chosen[:most]):
        new.append(token)
        grammar.accept_token(token)
        if token == end or place == len(drafts) or token != drafts[place]:
            break
    return new


# ---- one asynchronous step -------------------------------------------------------------------------


class Scheduled(Protocol):
    """A request of a step."""

    bound: bool
    is_prefill_chunk: bool
    num_output_placeholders: int


class Plan(Protocol):
    """What a step runs."""

    requests: Sequence[Scheduled]
    drafts: dict[str, list[int]]


class Core(Protocol):
    """An engine's scheduler and worker."""

    def schedule(self) -> Plan | None: ...
    def execute_model(self, plan: Plan) -> None: ...
    def get_grammar_bitmask(self, plan: Plan) -> Any: ...
    def sample_tokens(self, plan: Plan, rows: Any) -> None: ...
    def update_from_output(self, plan: Plan | None) -> None: ...
    def take_draft_token_ids(self, plan: Plan) -> dict[str, list[int]]: ...
    def grammar(self, request_id: str) -> Grammar | None: ...


def place_drafts(grammar: Grammar | None, drafts: Sequence[int], num_places: int) -> list[int]:
    """The drafts that a step which is under way already shall verify."""
    drafts = list(drafts[:num_places])
    if grammar is not None:
        drafts = filter_drafts(grammar, drafts)
    return drafts + [-1] * (num_places - len(drafts))


def must_defer(requests: Sequence[Scheduled]) -> bool:
    """Whether the step's tokens can be sampled only after those of the step before are known."""
    return any(
        request.bound and not request.is_prefill_chunk and request.num_output_placeholders > 0
        for request in requests
    )


def async_step(core: Core) -> None:
    """One turn of the engine's loop."""
    plan = core.schedule()
    deferred = plan is not None and must_defer(plan.requests)
    if plan is not None:
        core.execute_model(plan)
        if not deferred:
            core.sample_tokens(plan, core.get_grammar_bitmask(plan))
    core.update_from_output(plan)
    if plan is not None and deferred:
        for request_id, drafts in core.take_draft_token_ids(plan).items():
            num_places = len(plan.drafts[request_id])
            plan.drafts[request_id] = place_drafts(core.grammar(request_id), drafts, num_places)
        core.sample_tokens(plan, core.get_grammar_bitmask(plan))
