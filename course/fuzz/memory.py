"""The worker: it writes, reads and samples as a plan tells it to, and has no model.

Each slot of the KV cache holds the number of a prefix (`world.prefixes`): the token written there, its
position and everything before it, the salt included. Batches are carried out in the order in which
they were planned, as one device does it, so a batch may be carried out as soon as it is planned;
when the scheduler hears of its result is another matter (`drive`).

With speculation a batch also computes drafts, and each sampling row verifies its own, as a worker does. A
plan that was made before the scheduler heard of a result counts that result's drafts as accepted, so its
positions are too high by as many as were rejected: the worker knows, and sets them right.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from course.fuzz.world import Speculation, drafts, prefixes, sample


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
        num_tokens: how many to compute, drafts among them.
        drafts: the last of those, which are to be verified; -1 where the worker alone knows them.
    """

    request_id: str
    tokens: list[int] | None
    block_ids: list[int]
    whole_table: bool
    start: int
    num_tokens: int
    drafts: list[int] = field(default_factory=list)


@dataclass
class Plan:
    """A scheduler's output, in the form that the worker takes.

    `rejected`, filled in by `Memory.execute`: request id -> its row's admission and how many drafts the
    batch rejected.
    """

    entries: list[Entry]
    finished: set[str]
    preempted: set[str]
    rejected: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Row:
    """What the worker knows of a request: its tokens as prefixes, and its block table."""

    prefixes: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    num_cached: int = 0
    """Positions that it did not compute itself when it was last admitted."""
    admission: int = 0
    """How often it was admitted."""
    unheard: int = 0
    """Drafts of this admission that were rejected, and the scheduler has not heard of it."""
    drafts: list[int] = field(default_factory=list)
    """What was drafted when it sampled last."""
    computed: int = 0
    """Tokens whose slots are right: up to here it need not compute again."""


class Memory:
    """The KV cache, by slots, and the worker's rows."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        vocabulary: int,
        speculation: Speculation | None = None,
        ahead: bool = False,
    ) -> None:
        self.speculation = speculation
        self.ahead = ahead  # does the worker keep the drafts, so that plans have placeholders?
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.vocabulary = vocabulary
        self.slots = [0] * (num_blocks * block_size)  # 0: never written
        self.rows: dict[str, Row] = {}
        self.salts: dict[str, int] = {}

    def execute(self, plan: Plan) -> list[list[int]]:
        """Carry a batch out; per request the tokens it sampled: none, or one and the drafts accepted before.

        Raises WrongSlot, WrongPlan.
        """
        for request_id in plan.finished:
            self.rows.pop(request_id, None)
        for request_id in plan.preempted:
            if request_id in self.rows:
                self.rows[request_id].table = []
        paths = [self._take_in(entry) for entry in plan.entries]
        # As in a layer of a model: all writes of a batch come before its first read.
        for entry, path in zip(plan.entries, paths, strict=True):
            self._write(entry, path)
        if self.speculation is not None:
            self._check_others(plan)
        for entry, path in zip(plan.entries, paths, strict=True):
            self._check(entry, path)
        return [self._sample(entry, plan) for entry in plan.entries]

    def hear(self, plan: Plan) -> None:
        """The scheduler has heard what became of a batch, its rejected drafts too."""
        for request_id, (admission, count) in plan.rejected.items():
            row = self.rows.get(request_id)
            if row is not None and row.admission == admission:
                row.unheard -= count

    def forget_tables(self) -> None:
        """All who ran have lost their blocks in a reset; no plan says so."""
        for row in self.rows.values():
            row.table = []

    def drop_drafts(self, plan: Plan) -> None:
        """This time nothing is drafted after a batch."""
        for entry in plan.entries:
            if entry.request_id in self.rows:
                self.rows[entry.request_id].drafts = []

    def proposals(self, plan: Plan) -> list[list[int]]:
        """What is drafted after a batch, per request. In the middle of a prompt it is of no use."""
        return [
            list(self.rows[e.request_id].drafts) if e.request_id in self.rows else []
            for e in plan.entries
        ]

    def _take_in(self, entry: Entry) -> list[int]:
        """Note what the plan says of a request. Returns its tokens up to the batch's last, as prefixes."""
        request_id = entry.request_id
        row = self.rows.setdefault(request_id, Row())
        if entry.whole_table:
            row.table = list(entry.block_ids)
            row.num_cached = entry.start
            row.admission, row.unheard = row.admission + 1, 0
        else:
            row.table += entry.block_ids
            entry.start -= row.unheard
            if self.speculation is not None and entry.start != row.computed:
                raise WrongPlan(
                    f"{request_id} goes on at position {entry.start}, and {row.computed} are computed"
                )
        end = entry.start + entry.num_tokens
        known = end - len(entry.drafts)
        if entry.tokens is not None:
            told = list(prefixes(entry.tokens, self.salts[request_id]))
            # What it has sampled itself, and nobody has told it yet, it still knows.
            row.prefixes = told + row.prefixes[len(told) : known]
        if known > len(row.prefixes):
            raise WrongPlan(f"{request_id}: token {known - 1} is to be computed and is not known")
        if entry.drafts:
            self._check_drafts(entry, row, known)
        if entry.num_tokens < 1 or entry.start < 0 or end > self.max_model_len:
            raise WrongPlan(
                f"{request_id}: positions {entry.start} to {end - 1} are to be computed"
            )
        if end > len(row.table) * self.block_size:
            raise WrongPlan(f"{request_id}: no slot for position {end - 1} in {row.table}")
        if len(set(row.table)) < len(row.table) or 0 in row.table:
            raise WrongPlan(f"{request_id}: a block twice, or the null block, in {row.table}")
        if not entry.drafts:
            return row.prefixes[:end]
        return [*row.prefixes, *prefixes(entry.drafts, 0, row.prefixes[-1])]

    def _check_drafts(self, entry: Entry, row: Row, known: int) -> None:
        """Put the worker's own drafts in where the plan has placeholders; in mode `sync` look whether they
        are what was drafted for the tokens that the request has."""
        who, count = entry.request_id, len(entry.drafts)
        if known != len(row.prefixes):
            raise WrongPlan(
                f"{who}: drafts for position {known}, and it has {len(row.prefixes)} tokens"
            )
        if entry.num_tokens <= count:
            raise WrongPlan(f"{who}: {count} drafts among {entry.num_tokens} tokens")
        if count > len(row.drafts) or not (self.ahead or entry.drafts == row.drafts[:count]):
            raise WrongPlan(
                f"{who}: {entry.drafts} are to be verified, and {row.drafts} were drafted"
            )
        entry.drafts = row.drafts[:count]

    def _slot(self, row: Row, position: int) -> int:
        block_id = row.table[position // self.block_size]
        return block_id * self.block_size + position % self.block_size

    def _write(self, entry: Entry, path: list[int]) -> None:
        row = self.rows[entry.request_id]
        for position in range(entry.start, entry.start + entry.num_tokens):
            self.slots[self._slot(row, position)] = path[position]

    def _check_others(self, plan: Plan) -> None:
        """What a batch wrote must be right for whoever else holds the block, and the drafter's own slots
        must be the request's alone."""
        assert self.speculation is not None
        size = self.block_size
        holders: dict[int, list[tuple[str, int]]] = {}
        for who, row in self.rows.items():
            for index, block_id in enumerate(row.table):
                holders.setdefault(block_id, []).append((who, index))
        for entry in plan.entries:
            row, end = self.rows[entry.request_id], entry.start + entry.num_tokens
            # The drafter's passes end here; not behind an admission, for which nobody reserves slots.
            last = min(end + self.speculation.lookahead, self.max_model_len)
            if last > len(row.table) * size and not entry.whole_table:
                raise WrongPlan(
                    f"{entry.request_id}: no slot for the drafter's position {last - 1} in {row.table}"
                )
            first = entry.start // size
            for index in range(first, min(-(-last // size), len(row.table))):
                for who, place in holders[row.table[index]]:
                    if who != entry.request_id:
                        self._check_shared(entry, end, index, who, place)

    def _check_shared(self, entry: Entry, end: int, index: int, who: str, place: int) -> None:
        """Another holds the block that a batch has written to."""
        size, other = self.block_size, self.rows[who]
        block_id = other.table[place]
        for position in range(max(entry.start, index * size), (index + 1) * size):
            at = place * size + position % size
            kept = position < end and at < len(other.prefixes)
            if not kept or self.slots[block_id * size + position % size] != other.prefixes[at]:
                raise WrongSlot(
                    f"{entry.request_id} writes position {position} into block {block_id}, which {who} holds"
                )

    def _check(self, entry: Entry, path: list[int]) -> None:
        """Read all that the batch's last row reads."""
        row = self.rows[entry.request_id]
        for position, expected in enumerate(path):
            found = self.slots[self._slot(row, position)]
            if found != expected:
                block_id = row.table[position // self.block_size]
                what = "was never written" if not found else "was written for another sequence"
                how = "hit" if position < row.num_cached else "own"
                raise WrongSlot(
                    f"{entry.request_id} reads position {position} in block {block_id} ({how}): it {what}"
                )

    def _sample(self, entry: Entry, plan: Plan) -> list[int]:
        row, spec = self.rows[entry.request_id], self.speculation
        row.computed = entry.start + entry.num_tokens
        if entry.start + entry.num_tokens < len(row.prefixes):
            return []  # a chunk; the prompt goes on, or tokens that it had before it was preempted
        tokens: list[int] = []
        for draft in [*entry.drafts, None]:
            token = sample(row.prefixes[-1], self.vocabulary)
            tokens.append(token)
            row.prefixes += prefixes([token], 0, row.prefixes[-1])
            if token != draft:
                break
        rejected = len(entry.drafts) - len(tokens) + 1
        row.unheard += rejected
        row.computed -= rejected
        plan.rejected[entry.request_id] = row.admission, rejected
        if spec is not None:
            row.drafts = drafts(row.prefixes[-1], spec, self.vocabulary, short=not self.ahead)
        return tokens
