"""The worker: it writes, reads and samples as a plan tells it to, and has no model.

Each slot of the KV cache holds the number of a prefix (`world.prefixes`): the token written there, its
position and everything before it, the salt included. Batches are carried out in the order in which
they were planned, as one device does it, so a batch may be carried out as soon as it is planned;
when the scheduler hears of its result is another matter (`drive`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from course.fuzz.world import prefixes, sample


class Wrong(Exception):
    """Something is not as it should be. The class names what, the message where."""


class WrongSlot(Wrong):
    """A read found another sequence than the reader's own, or nothing."""


class WrongPlan(Wrong):
    """A plan that no worker can carry out, or that breaks a limit."""


@dataclass
class Entry:
    """What a plan says of one request.

    Attributes:
        tokens: its tokens, if the plan tells them: of a new request, the prompt; of a resumed one, all.
        block_ids: its new blocks, or its whole table if `whole_table`.
        start: tokens computed before, that is the first position to compute.
        num_tokens: how many to compute.
    """

    request_id: str
    tokens: list[int] | None
    block_ids: list[int]
    whole_table: bool
    start: int
    num_tokens: int


@dataclass
class Plan:
    """A scheduler's output, in the form that the worker takes."""

    entries: list[Entry]
    finished: set[str]
    preempted: set[str]


@dataclass
class Row:
    """What the worker knows of a request: its tokens as prefixes, and its block table."""

    prefixes: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    num_cached: int = 0
    """Positions that it did not compute itself when it was last admitted."""


class Memory:
    """The KV cache, by slots, and the worker's rows."""

    def __init__(
        self, num_blocks: int, block_size: int, max_model_len: int, vocabulary: int
    ) -> None:
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.vocabulary = vocabulary
        self.slots = [0] * (num_blocks * block_size)  # 0: never written
        self.rows: dict[str, Row] = {}
        self.salts: dict[str, int] = {}

    def execute(self, plan: Plan) -> list[list[int]]:
        """Carry a batch out; per request the token it sampled, or none.

        Raises WrongSlot, WrongPlan.
        """
        for request_id in plan.finished:
            self.rows.pop(request_id, None)
        for entry in plan.entries:
            self._take_in(entry)
        # As in a layer of a model: all writes of a batch come before its first read.
        for entry in plan.entries:
            self._write(entry)
        return [self._read(entry) for entry in plan.entries]

    def _take_in(self, entry: Entry) -> None:
        request_id, end = entry.request_id, entry.start + entry.num_tokens
        row = self.rows.setdefault(request_id, Row())
        if entry.tokens is not None:
            told = list(prefixes(entry.tokens, self.salts[request_id]))
            # What it has sampled itself, and nobody has told it yet, it still knows.
            row.prefixes = told + row.prefixes[len(told) : end]
        if entry.whole_table:
            row.table = list(entry.block_ids)
            row.num_cached = entry.start
        else:
            row.table += entry.block_ids
        if end > len(row.prefixes):
            raise WrongPlan(f"{request_id}: token {end - 1} is to be computed and is not known")
        if entry.num_tokens < 1 or end > self.max_model_len:
            raise WrongPlan(
                f"{request_id}: positions {entry.start} to {end - 1} are to be computed"
            )
        if end > len(row.table) * self.block_size:
            raise WrongPlan(f"{request_id}: no slot for position {end - 1} in {row.table}")
        if len(set(row.table)) < len(row.table) or 0 in row.table:
            raise WrongPlan(f"{request_id}: a block twice, or the null block, in {row.table}")

    def _slot(self, row: Row, position: int) -> int:
        block_id = row.table[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def _write(self, entry: Entry) -> None:
        row = self.rows[entry.request_id]
        for position in range(entry.start, entry.start + entry.num_tokens):
            self.slots[self._slot(row, position)] = row.prefixes[position]

    def _read(self, entry: Entry) -> list[int]:
        row = self.rows[entry.request_id]
        end = entry.start + entry.num_tokens
        for position in range(end):
            found = self.slots[self._slot(row, position)]
            if found != row.prefixes[position]:
                block_id = row.table[position // self.block_size]
                what = "was never written" if not found else "was written for another sequence"
                how = "hit" if position < row.num_cached else "own"
                raise WrongSlot(
                    f"{entry.request_id} reads position {position} in block {block_id} ({how}): it {what}"
                )
        if end < len(row.prefixes):
            return []  # a chunk; the prompt goes on, or tokens that it had before it was preempted
        token = sample(row.prefixes[-1], self.vocabulary)
        row.prefixes += prefixes([token], 0, row.prefixes[-1])
        return [token]
