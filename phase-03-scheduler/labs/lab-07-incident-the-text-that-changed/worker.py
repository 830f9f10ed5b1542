"""Lab 03-07: who asked what in the incident, and a worker that remembers who wrote what.

The worker has no weights, but it has a KV cache: what a slot holds depends on the token and on what was
read before it, and a sampled token depends on every slot that was read. So what is wrong in a slot goes
into the text, as it does in a model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from course.fuzz.memory import Plan
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
DAYS = ("monday", "tuesday", "wednesday")
SETTINGS: dict[str, Any] = {
    "block_size": 16,
    "num_gpu_blocks": 9,
    "max_model_len": 128,
    "long_prefill_token_threshold": 32,
    "scheduling_policy": "priority",
}
GIL = "The KV cache stores the keys and values of all tokens read so far. With it, a decode step has to "
HAL = "A block table maps the positions of a request to the blocks that hold them."
EVE = {"monday": "Meet me at noon at the river. " * 6, "tuesday": "queue " * 40}


def lines(name: str) -> list[dict[str, Any]]:
    """A file of `incident/`, one record a line."""
    text = (HERE / "incident" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def requests(day: str) -> list[dict[str, Any]]:
    """Who came on a day of the incident: once `after` has ended (None: at once), and `at` steps later.

    On Wednesday, after the restart, Gil was alone.
    """
    tokenizer = Tokenizer.from_folder(DEFAULT_MODEL)
    gil = tokenizer.encode(GIL)[-96:]
    question = {"who": "gil", "prompt": gil, "priority": 5, "max_tokens": 24}
    if day == "wednesday":
        return [{"id": "gil-2", "after": None} | question]
    eve = {"who": "eve", "prompt": tokenizer.encode(EVE[day])[:127], "priority": 0, "max_tokens": 1}
    hal = {"who": "hal", "prompt": tokenizer.encode(HAL)[:32], "priority": 0, "max_tokens": 16}
    return [
        {"id": "eve-1", "after": None} | eve,
        {"id": "gil-2", "after": "eve-1"} | question,
        {"id": "hal-3", "after": "eve-1", "at": 1} | hal,
        {"id": "gil-4", "after": "gil-2"} | question,
    ]


# -- the worker ------------------------------------------------------------------------------------


class Worker:
    """Writes, reads and samples as a plan tells it to.

    Attributes:
        slots: by block and offset what was written last; 0 is a slot that nobody wrote.
        wrong: reads that found something else than the reader's own sequence, as text.
    """

    def __init__(self, num_gpu_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots = [[0] * block_size for _ in range(num_gpu_blocks)]
        self.tokens: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.wrong: list[str] = []

    def execute(self, plan: Plan) -> list[list[int]]:
        for entry in plan.entries:
            known = self.tokens.setdefault(entry.request_id, [])
            if entry.tokens is not None:
                known[: len(entry.tokens)] = entry.tokens
            table = self.tables.setdefault(entry.request_id, [])
            if entry.whole_table:
                table.clear()
            table.extend(entry.block_ids)
        # As in a layer of a model: all writes of a step come before its first read.
        for entry in plan.entries:
            for position in range(entry.start, entry.start + entry.num_tokens):
                self._write(entry.request_id, position)
        return [self._read(e.request_id, e.start + e.num_tokens) for e in plan.entries]

    def _slot(self, request_id: str, position: int) -> tuple[int, int]:
        block, offset = divmod(position, self.block_size)
        return self.tables[request_id][block], offset

    def _found(self, request_id: str, position: int) -> int:
        block, offset = self._slot(request_id, position)
        return self.slots[block][offset]

    def _write(self, request_id: str, position: int) -> None:
        before = self._found(request_id, position - 1) if position else 1
        block, offset = self._slot(request_id, position)
        self.slots[block][offset] = hash((before, self.tokens[request_id][position]))

    def _read(self, request_id: str, end: int) -> list[int]:
        found = [self._found(request_id, position) for position in range(end)]
        tokens = self.tokens[request_id]
        right = 1
        for position, number in enumerate(found):
            right = hash((right, tokens[position]))
            if number != right:
                block, _ = self._slot(request_id, position)
                self.wrong.append(f"{request_id} at position {position}, in block {block}")
                break
        if end < len(tokens):
            return []
        tokens.append(3 + hash(tuple(found)) % 1000)
        return [tokens[-1]]
