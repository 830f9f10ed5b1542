"""Given: 256 requests as they came, and a server that serves them on an allocator of yours.

The lengths in `azure_conversations.csv` are real; the README says whose they are. The server is the
least that makes requests come and go: one queue, one token a step, nothing computed.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
MAX_MODEL_LEN = 8192
MAX_TOKENS = 1024
NUM_SLOTS = 65_536
"""8 GiB of KV cache for Llama-3-8B in 16 bits, at 131,072 bytes a token."""


class Request(NamedTuple):
    """One request: tokens of the prompt, tokens that the model will answer with."""

    prompt: int
    output: int

    @property
    def length(self) -> int:
        """Tokens in the KV cache at the end. The last output token is never run, so it has no slot."""
        return self.prompt + self.output - 1


def load_requests() -> list[Request]:
    """The 256 requests, in the order in which they arrived."""
    with (HERE / "azure_conversations.csv").open(encoding="utf-8", newline="") as file:
        return [Request(int(row["prompt"]), int(row["output"])) for row in csv.DictReader(file)]


def the_models_maximum(request: Request) -> int:
    """Reserve what the model could hold at most: the same for everyone."""
    return MAX_MODEL_LEN


def the_clients_maximum(request: Request) -> int:
    """Reserve the prompt and the most that the client lets the model answer."""
    return request.prompt + MAX_TOKENS


@dataclass
class Moment:
    """The pool at the end of a step.

    Attributes:
        lengths: tokens in the cache, by request.
        taken: slots that belong to somebody.
        holes: sizes of the free extents.
        wanted: slots that the head of the queue was refused, 0 if the queue is empty.
        preempted: requests thrown out in this step.
    """

    lengths: dict[str, int]
    taken: int
    holes: list[int]
    wanted: int
    preempted: int

    @property
    def held(self) -> int:
        return sum(self.lengths.values())

    @property
    def stuck(self) -> bool:
        """Whether somebody is refused though there is room enough in all."""
        return 0 < self.wanted <= sum(self.holes)


def serve(
    allocator: Any, requests: Sequence[Request], at_most: Callable[[Request], int]
) -> Iterator[Moment]:
    """Serve all requests, first come first served, and look at the pool after each step.

    In a step every running request gets a token, then as many of the queue are admitted as fit. A request
    that finds no slot for its token makes the one admitted last give everything back and queue again, in
    front. Prompts enter whole.
    """
    waiting = deque(
        (str(number), request, request.prompt) for number, request in enumerate(requests)
    )
    running: dict[str, Request] = {}
    lengths: dict[str, int] = {}
    while waiting or running:
        preempted = 0
        for name in list(running):
            while name in running and not allocator.grow(name, lengths[name] + 1):
                victim, its_request = running.popitem()
                allocator.release(victim)
                waiting.appendleft((victim, its_request, lengths.pop(victim)))
                preempted += 1
            if name in running:
                lengths[name] += 1
        while waiting and not preempted:
            name, request, tokens = waiting[0]
            if not allocator.allocate(name, tokens, at_most(request)):
                break
            waiting.popleft()
            running[name], lengths[name] = request, tokens
        if not running:
            raise ValueError(f"request {waiting[0][0]} does not fit into the empty pool")
        wanted = 0
        if waiting:
            name, request, tokens = waiting[0]
            wanted = allocator.need(tokens, at_most(request))
        holes = [size for _, size in allocator.holes()]
        yield Moment(dict(lengths), allocator.num_taken(), holes, wanted, preempted)
        for name in [name for name in running if lengths[name] >= running[name].length]:
            allocator.release(name)
            del running[name], lengths[name]


@dataclass
class Totals:
    """What a run comes to, averaged over the steps in which somebody waited."""

    steps: int
    running: float
    held: float
    reserved: float
    free: float
    stuck: float
    preempted: int


def totals(moments: Iterator[Moment], num_slots: int) -> Totals:
    """Add a run up. `held`, `reserved` and `free` are shares of the pool, `stuck` one of the steps."""
    steps = busy = running = held = taken = stuck = preempted = 0
    for moment in moments:
        steps += 1
        preempted += moment.preempted
        if moment.wanted:
            busy += 1
            running += len(moment.lengths)
            held += moment.held
            taken += moment.taken
            stuck += moment.stuck
    room = busy * num_slots
    return Totals(
        steps,
        running / busy,
        held / room,
        (taken - held) / room,
        (room - taken) / room,
        stuck / busy,
        preempted,
    )
