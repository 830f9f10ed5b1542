"""Lab 01-02: what vLLM's log says of each step, read and then computed. Your work: three functions.

Given beside this file, and worth reading: `listening.py` wraps a scheduler and turns what it says into
the events of lab 01-01; `engines.py` drives both engines through workload.json; `capture.py` starts the
real vLLM.
"""

from __future__ import annotations

import re  # noqa: F401  # for your work
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


# ---- yours ---------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """The environment variables that make vLLM talk, and keep its scheduler within reach.

    Two: the log level is DEBUG, and the engine core runs in the process that drives it instead of one of its
    own. DEBUG is for the worker's own line on what it runs; the iteration lines are INFO, and have a switch
    of their own, which listening.py sets. The two variables must be set before vllm is imported; capture.py
    sees to that.
    """
    raise NotImplementedError


def parse_iterations(log: str) -> list[Iteration]:
    """Every iteration line of the log, in order, and no other line:

    Iteration(3): 1 context requests, 22 context tokens, 2 generation requests, 2 generation tokens, ...

    In front of it are a level, a time and a file, and if the engine core has its own process, that
    process's name.
    """
    raise NotImplementedError


def iterations_of(events: Iterable[Event]) -> list[Iteration]:
    """The iteration lines that a run with these events must have logged.

    One line for each step that has an event, even if nothing was scheduled: then all its counts are 0.
    Lines are numbered from 0 as they are written; step 0 is before the first step and has none.

    A scheduled request, and its tokens, count in one of two groups. vLLM chooses by one question: before
    this step, had the request sampled a token? If not, it is context; if so, it is generation.
    """
    raise NotImplementedError
