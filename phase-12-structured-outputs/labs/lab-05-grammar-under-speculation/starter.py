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
        num_output_placeholders: places of earlier steps whose tokens the scheduler does not know yet.
    """

    bound: bool
    is_prefill_chunk: bool
    num_output_placeholders: int


class Plan(Protocol):
    """What a step runs.

    Attributes:
        requests: in their order.
        drafts: by request id, for those that have places for drafts: one -1 per place, because only the
            worker knows them. Yours to replace.
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
        """Wait for the tokens of the step before `plan`, and take them in: your `accept` moves the grammars
        on. Does nothing if there is none. With None it is the latest step."""
        ...

    def take_draft_token_ids(self, plan: Plan) -> dict[str, list[int]]:
        """Wait for the worker's drafts of a step that is executed and not sampled, by request id: free
        and bound requests that have places in it and have not finished."""
        ...

    def grammar(self, request_id: str) -> Grammar | None:
        """A request's grammar; None if the request is free."""
        ...


# ---- both modes ------------------------------------------------------------------------------------


def filter_drafts(grammar: Grammar, drafts: Sequence[int]) -> list[int]:
    """The longest beginning of the drafts that the grammar allows.

    Ask `accept_token`; no row is filled. Afterwards the grammar is in the state in which it was.

    Args:
        grammar: of a bound request.
        drafts: tokens, and perhaps -1, at which the beginning ends.

    Returns:
        A new list. `drafts` stays as it is.
    """
    raise NotImplementedError


def fill_rows(grammar: Grammar, drafts: Sequence[int], bitmask: NDArray[np.int32], row: int) -> int:
    """Fill the rows of one request: one for each draft, and one for the token after the last.

    A row has the tokens that are allowed if all drafts before it are taken. It is free, all ones (-1), where
    the grammar is terminated then, and where a draft before it is -1. Afterwards the grammar is in the state
    in which it was.

    Args:
        grammar: of a bound request. It may be terminated.
        drafts: filtered, and each -1 an unknown place. What stands behind a -1 does not matter.
        bitmask: the rows of all requests of the step, with bits of earlier steps in them.
        row: the first of this request's rows. Other requests' rows stay as they are.

    Returns:
        The row after this request's last.
    """
    raise NotImplementedError


def accept(
    grammar: Grammar, drafts: Sequence[int], chosen: Sequence[int], end: int, most: int
) -> list[int]:
    """What a step brings a bound request. Its grammar moves on by exactly that.

    Verification is greedy: the request gets what was chosen, up to and with the first place at which that is
    not the draft, or the place after the last draft. It gets nothing behind an end token, because there it
    stops, and at most `most` tokens.

    Args:
        grammar: in the state before the step.
        drafts: those that the model has verified; -1 is never chosen.
        chosen: the model's choice at each place, one more than drafts.
        end: the end token.
        most: how many tokens the request may still get, at least 1.

    Returns:
        The new tokens.
    """
    raise NotImplementedError


# ---- asynchronous scheduling -----------------------------------------------------------------------


def place_drafts(grammar: Grammar | None, drafts: Sequence[int], num_places: int) -> list[int]:
    """What a step that is being executed verifies: a draft for each of its places.

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

    The model starts before anything is waited for. A step that need not be deferred is sampled before the
    step before it is taken in; a deferred one after that, with the worker's drafts in the places of its plan.
    In a turn with nothing to run, the latest step is taken in.
    """
    raise NotImplementedError
