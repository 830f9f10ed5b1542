"""Lab 12-05: grammar under speculation. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names given there."""
    raise NotImplementedError


# ---- given: what you get ---------------------------------------------------------------------------


class Grammar(Protocol):
    """A compiled rule and the state it is in, with the four methods of xgrammar's matcher."""

    def accept_token(self, token: int) -> bool:
        """Move on by a token. False where the state bars it, as after the end token every token is: then
        the state stays as it was. -1 is no token and is never accepted."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Go back to the state before the last `num_tokens` accepted tokens; 0 is allowed."""
        ...

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        """Write the tokens allowed next into a row. An error once `is_terminated`."""
        ...

    def is_terminated(self) -> bool:
        """Whether the end token was accepted."""
        ...


class Scheduled(Protocol):
    """A request of a step, as it was when the step was planned.

    Attributes:
        bound: it has a rule.
        is_prefill_chunk: the step does not reach the end of its prompt, so nothing is sampled for it.
        num_output_placeholders: its tokens of earlier steps that the scheduler does not know yet, drafts
            included.
    """

    bound: bool
    is_prefill_chunk: bool
    num_output_placeholders: int


class Plan(Protocol):
    """What a step runs.

    Attributes:
        requests: in their order.
        drafts: by request id, for those that have places for drafts: one -1 per place, because only the
            worker knows them. Yours to replace in a deferred step. A request has places only in a step
            that is planned while some token of it is in flight.
    """

    requests: Sequence[Scheduled]
    drafts: dict[str, list[int]]


class Core(Protocol):
    """The scheduler and the worker of an engine with asynchronous scheduling."""

    def schedule(self) -> Plan | None:
        """Plan the next step; None if there is nothing to run."""
        ...

    def execute_model(self, plan: Plan) -> None:
        """Start the model on a step, with the worker's own drafts. Does not wait."""
        ...

    def get_grammar_bitmask(self, plan: Plan) -> Any:
        """The rows of the step's bound requests, by your `fill_rows` with `plan.drafts`, from the states in
        which their grammars are now. Requests that have finished meanwhile have none."""
        ...

    def sample_tokens(self, plan: Plan, rows: Any) -> None:
        """Let the worker sample and verify a step that it executes, under these rows. Does not wait."""
        ...

    def update_from_output(self, plan: Plan | None) -> None:
        """Wait for the tokens of the step *before* `plan`, and take them in: your `accept` moves the grammars
        on. Does nothing if there is no such step. With None, those of the latest step are taken in."""
        ...

    def take_draft_token_ids(self, plan: Plan) -> dict[str, list[int]]:
        """The worker's drafts of a step that is executed and not sampled, by request id: of the free and the
        bound requests that have places in it and have not finished.

        They are made when the step before has been sampled, so ask for them once that step is taken in:
        earlier you would wait for its tokens, and a step that is not deferred must not wait."""
        ...

    def grammar(self, request_id: str) -> Grammar | None:
        """A request's grammar; None if the request is free."""
        ...


# ---- both modes ------------------------------------------------------------------------------------
# No list that you are given is changed, except `Plan.drafts`.


def filter_drafts(grammar: Grammar, drafts: Sequence[int]) -> list[int]:
    """The longest beginning of the drafts that the grammar allows.

    Ask `accept_token`; no row is filled. Afterwards the grammar is in the state in which it was.

    Args:
        grammar: of a bound request.
        drafts: tokens. There may be a -1 among them, where the beginning ends.

    Returns:
        A new list.
    """
    raise NotImplementedError


def fill_rows(grammar: Grammar, drafts: Sequence[int], bitmask: NDArray[np.int32], row: int) -> int:
    """Fill the rows of one request: one for each draft, and one for the token after the last.

    A row has the tokens that are allowed if all drafts before it are taken. It is free, all ones (-1), where
    the grammar is terminated then, and where a draft before it is -1. Afterwards the grammar is in the state
    in which it was.

    Args:
        grammar: of a bound request. It may be terminated.
        drafts: filtered; -1 is a draft that is not known. What stands behind a -1 does not matter.
        bitmask: the rows of all requests of the step, with bits of earlier steps in them.
        row: the first of this request's rows. Other requests' rows stay as they are.

    Returns:
        The row after this request's last.
    """
    raise NotImplementedError


def accept(
    grammar: Grammar, drafts: Sequence[int], chosen: Sequence[int], end: int, most: int
) -> list[int]:
    """What a bound request gets from a step. Its grammar moves on by exactly that.

    Verification is greedy: the request gets the chosen tokens one by one, and the first that is not the draft
    in its place is the last. If all drafts were chosen, it gets the token after them too. It gets nothing
    behind an end token, where it stops, and at most `most` tokens.

    Args:
        grammar: in the state before the step.
        drafts: those that the model has run on; -1 is never chosen.
        chosen: the model's choice in the place of each draft, and for the token after them.
        end: the end token.
        most: how many tokens the request may still get, at least 1.

    Returns:
        The new tokens.
    """
    raise NotImplementedError


# ---- asynchronous scheduling -----------------------------------------------------------------------


def place_drafts(grammar: Grammar | None, drafts: Sequence[int], num_places: int) -> list[int]:
    """What is written into a step that is already running: a draft, or -1, for each of its places.

    The drafts are cut to the number of places, then filtered if there is a grammar, and then filled up with
    -1 to the number of places.
    """
    raise NotImplementedError


def must_defer(requests: Sequence[Scheduled]) -> bool:
    """Whether a step must not be sampled before the tokens of earlier steps are known.

    That is so if for some request a row has to be filled, and the state from which it is filled is not known
    yet. One such request is enough: a step is sampled as a whole.
    """
    raise NotImplementedError


def async_step(core: Core) -> None:
    """One turn of the engine's loop: plan a step, run it, and take in the step before.

    The model starts before anything is waited for. If the step need not be deferred, it is sampled, and then
    the step before it is taken in. If it is deferred, the step before is taken in first; then the worker's
    drafts come into the places of the plan, and the step is sampled. In a turn with nothing to run, the
    latest step is taken in.
    """
    raise NotImplementedError
