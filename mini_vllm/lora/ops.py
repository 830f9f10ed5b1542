"""The product of a step's rows with their adapters, plainly and in groups.

Upstream has two kernels for it, `lora_shrink` and `lora_expand`, over rows that are sorted by adapter
(`vllm/lora/punica_wrapper/punica_gpu.py:90 PunicaWrapperGPU.add_shrink`, and 158); its CPU build gathers a
copy of the adapter for each row (`vllm/lora/ops/torch_ops/lora_ops.py:67 bgmv_shrink`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array

Rows = slice | NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Piece:
    """One adapted projection of a linear layer that may have several side by side.

    Attributes:
        start: of its columns in the layer's result.
        lora_a: `[r, in]`.
        lora_b: `[out, r]`, scaled.
    """

    start: int
    lora_a: Array
    lora_b: Array


@dataclass(frozen=True)
class Run:
    """Rows of a step that lie side by side and have the same slot."""

    start: int
    stop: int
    slot: int


class LoRAMapping:
    """Which rows of the step have which slot; rows without an adapter are in no run.

    Attributes:
        runs: in order.
        groups: by slot, all of its rows.
    """

    def __init__(self) -> None:
        self.set_runs([])

    def set_runs(self, runs: list[Run]) -> None:
        self.runs = runs
        of_slots: dict[int, list[Run]] = {}
        for run in runs:
            of_slots.setdefault(run.slot, []).append(run)
        self.groups: dict[int, Rows] = {
            slot: slice(its[0].start, its[0].stop)
            if len(its) == 1
            else np.concatenate([np.arange(run.start, run.stop) for run in its])
            for slot, its in of_slots.items()
        }

    def set_rows(self, slots: Sequence[int | None], counts: Sequence[int]) -> None:
        """Take a step's requests in order: each one's slot, None for none, and its number of rows."""
        runs: list[Run] = []
        stop = 0
        for slot, count in zip(slots, counts, strict=True):
            start, stop = stop, stop + int(count)
            if slot is None:
                continue
            if runs and runs[-1].slot == slot and runs[-1].stop == start:
                start = runs.pop().start
            runs.append(Run(start, stop, slot))
        self.set_runs(runs)

    @contextmanager
    def select(self, rows: NDArray[np.integer[Any]]) -> Iterator[None]:
        """Within it, row i is the step's row `rows[i]`, and there are no others."""
        whole = self.runs
        slots = np.full(max((run.stop for run in whole), default=0) + 1, -1)
        for run in whole:
            slots[run.start : run.stop] = run.slot
        # Rows behind the last run have no adapter, like the one that is added for them.
        chosen = slots[np.minimum(rows, len(slots) - 1)].tolist()
        self.set_rows([None if slot < 0 else slot for slot in chosen], [1] * len(chosen))
        try:
            yield
        finally:
            self.set_runs(whole)

    @contextmanager
    def window(self, first: int, last: int) -> Iterator[None]:
        """Within it, row 0 is the step's row `first`, and there are none from `last` on."""
        whole = self.runs
        cut = [
            Run(max(run.start, first) - first, min(run.stop, last) - first, run.slot)
            for run in whole
            if run.start < last and run.stop > first
        ]
        self.set_runs(cut)
        try:
            yield
        finally:
            self.set_runs(whole)


def add_lora_by_run(
    y: Array, x: Array, mapping: LoRAMapping, slots: Mapping[int, Sequence[Piece]]
) -> None:
    """The plain form: for each run of rows, and each projection, shrink and expand.

    Args:
        y: `[n, out]`, the layer's result, to which the products are added in place.
        x: `[n, in]`.
        slots: by slot, what its adapter has for this layer.
    """
    for run in mapping.runs:
        for piece in slots.get(run.slot, ()):
            rows = x[run.start : run.stop]
            shrunk = rows @ piece.lora_a.T
            columns = slice(piece.start, piece.start + len(piece.lora_b))
            y[run.start : run.stop, columns] += shrunk @ piece.lora_b.T


def add_lora_grouped(
    y: Array, x: Array, mapping: LoRAMapping, slots: Mapping[int, Sequence[Piece]]
) -> None:
    """The same with all rows of an adapter together: as many products as adapters, however many requests."""
    for slot, rows in mapping.groups.items():
        pieces = slots.get(slot, ())
        if not pieces:
            continue
        of_adapter = x[rows]
        for piece in pieces:
            delta = (of_adapter @ piece.lora_a.T) @ piece.lora_b.T
            y[rows, piece.start : piece.start + len(piece.lora_b)] += delta
