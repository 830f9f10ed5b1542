"""Lab 01-02: what vLLM's log says of each step, read and then computed. The reference solution."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol

# ---- given ---------------------------------------------------------------------------------------


class Iteration(NamedTuple):
    """One step, as the log line `Iteration(number): ...` has it. A request is in one of the two groups."""

    number: int
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int


class Event(Protocol):
    """What you need here of an event of lab 01-01. `listening.py` makes them from what a scheduler says.

    One request at one moment: step 0 for one added before the first step, then one event for each step that
    it lives through, waiting or running. Events are in the order in which things happened.
    """

    @property
    def step(self) -> int: ...
    @property
    def request_id(self) -> str: ...
    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens that the request was given in this step; 0 while it waits."""

    @property
    def new_token_ids(self) -> tuple[int, ...]:
        """What the step sampled for it; empty in the middle of a prompt."""


# ---- the solution --------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """The environment variables that make vLLM talk, and keep its scheduler within reach."""
    return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "DEBUG"}


_ITERATION = re.compile(
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, "
    r"(\d+) generation requests, (\d+) generation tokens"
)


def parse_iterations(log: str) -> list[Iteration]:
    """Every `Iteration(i)` line of the log, in order."""
    return [Iteration(*map(int, match.groups())) for match in _ITERATION.finditer(log)]


def iterations_of(events: Iterable[Event]) -> list[Iteration]:
    """The `Iteration` lines that a run with these events must have logged."""
    steps: dict[int, list[int]] = {}
    answered: set[str] = set()
    for event in events:
        if event.step == 0:
            continue
        counts = steps.setdefault(event.step, [0, 0, 0, 0])
        if event.num_scheduled_tokens:
            group = 2 if event.request_id in answered else 0
            counts[group] += 1
            counts[group + 1] += event.num_scheduled_tokens
        if event.new_token_ids:
            answered.add(event.request_id)
    return [Iteration(number, *steps[step]) for number, step in enumerate(sorted(steps))]
