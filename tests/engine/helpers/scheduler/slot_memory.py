"""A KV cache whose slots remember what was written to them, and the worker that writes and reads it.

It holds no keys and values: `slot_identity.py` says what it is for, and drives schedulers over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mini_vllm.core.sched.output import ModelRunnerOutput, SchedulerOutput

MAX_MODEL_LEN = 48
Group = tuple[str, int]
FULL: Group = ("full", 0)


class WrongSlot(AssertionError):
    """A read found another sequence than the reader's own."""


@dataclass
class Row:
    """What a worker knows of a request: its tokens, as prefixes, and its block tables."""

    prefixes: np.ndarray  # at each position, the number of the prefix that ends there
    num_tokens: int = 0
    tables: list[list[int]] = field(default_factory=list)  # one a group
    num_prompt_tokens: int = 0


class SlotMemory:
    """A KV cache of prefix numbers, and the worker that writes and reads it.

    A prefix is a salt and the tokens after it. Equal prefixes have equal numbers, others have not:
    a number tells token, position and all that came before. 0 is a slot never written.

    Args:
        groups: each KV cache group's kind, `full`, `window` or `chunk`, and its size in tokens.
    """

    def __init__(
        self, num_blocks: int, block_size: int, vocabulary: int, groups: Sequence[Group] = (FULL,)
    ) -> None:
        self.block_size = block_size
        self.groups = list(groups)
        self.vocabulary = vocabulary
        self.slots = np.zeros((num_blocks, block_size), np.int64)
        self.rows: dict[str, Row] = {}
        self.salts: dict[str, str | None] = {}
        self._numbers: dict[tuple[Any, int], int] = {}

    def _append(self, request_id: str, token_id: int) -> None:
        row = self.rows[request_id]
        last = row.prefixes[row.num_tokens - 1] if row.num_tokens else self.salts[request_id]
        number = self._numbers.setdefault((last, token_id), len(self._numbers) + 1)
        row.prefixes[row.num_tokens] = number
        row.num_tokens += 1

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """One step of a worker. Raises WrongSlot at a read that finds something else."""
        for request_id in output.finished_req_ids:
            self.rows.pop(request_id, None)
        for request_id in output.preempted_req_ids | output.reset_req_ids:
            self.rows[request_id].tables = []
        starts: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            tables = [list(ids) for ids in new.block_ids]
            self.rows[new.req_id] = Row(np.zeros(MAX_MODEL_LEN, np.int64), 0, tables)
            for token_id in new.prompt_token_ids:
                self._append(new.req_id, token_id)
            self.rows[new.req_id].num_prompt_tokens = len(new.prompt_token_ids)
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for request_id, block_ids, start in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            row = self.rows[request_id]
            if request_id in cached.resumed_req_ids:
                row.tables = [[] for _ in self.groups]
            for table, more in zip(row.tables, block_ids or (), strict=False):
                table.extend(more)
            starts[request_id] = start
        for request_id, count in zip(cached.req_ids, cached.num_output_tokens, strict=False):
            if request_id in cached.resumed_req_ids:  # whose newest token may have been dropped
                row = self.rows[request_id]
                row.num_tokens = row.num_prompt_tokens + count

        # As in a layer: all writes of a step come before its first read.
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            self._write(request_id, starts[request_id], starts[request_id] + num_tokens)
        sampled: list[list[int]] = []
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            end = starts[request_id] + num_tokens
            self._read(request_id, starts[request_id], end)
            row = self.rows[request_id]
            sampled.append([])
            if end == row.num_tokens:
                sampled[-1].append(3 + int(row.prefixes[end - 1]) * 7 % self.vocabulary)
                if end < MAX_MODEL_LEN:
                    self._append(request_id, sampled[-1][0])
        ids = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(ids, {r: i for i, r in enumerate(ids)}, sampled)

    def _write(self, request_id: str, start: int, end: int) -> None:
        row = self.rows[request_id]
        for group_id, table in enumerate(row.tables):
            if end > len(table) * self.block_size:
                raise WrongSlot(f"{request_id} has no slot for position {end - 1}: table {table}")
            for position in range(start, end):
                block_id = table[position // self.block_size]
                number = row.prefixes[position] * len(self.groups) + group_id
                self.slots[block_id, position % self.block_size] = number

    def _read(self, request_id: str, start: int, end: int) -> None:
        row = self.rows[request_id]
        for group_id, ((kind, size), table) in enumerate(zip(self.groups, row.tables, strict=True)):
            first = 0
            if kind == "window":
                first = max(0, start - size + 1)
            elif kind == "chunk":
                first = start // size * size
            found = self.slots[table].reshape(-1)[first:end]
            wrong = found != row.prefixes[first:end] * len(self.groups) + group_id
            if wrong.any():
                at = int(wrong.argmax())
                block_id = table[(first + at) // self.block_size]
                raise WrongSlot(
                    f"{request_id} reads position {first + at} in block {block_id}: "
                    + ("never written" if not found[at] else "written for another sequence")
                )
