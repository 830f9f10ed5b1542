"""Weak references to outputs, pads what must be padded and nothing else, whole models captured first."""

from __future__ import annotations

from typing import Any

import torch

from course.learner.labs import load_module
from mini_vllm.gpu.weak_ref import weak_ref_tensors
from tests.authors.graph_runners.lab import SOLUTION

solution = load_module(SOLUTION, "lab_05_06_solution_of_frugal")
padded_size = solution.padded_size


class Captured(solution.Captured):  # type: ignore[misc, name-defined]
    """Lets the pool have its outputs' memory."""

    def capture(self, size: int, *args: Any) -> Any:
        output = super().capture(size, *args)
        self.entries[size] = self.entries[size][0], weak_ref_tensors(output)
        return output


solution.Captured = Captured


class CaptureRunner(solution.CaptureRunner):  # type: ignore[misc, name-defined]
    """Ids, positions and blocks of padding stay what they were: lengths of 0 and slots of -1 are enough."""

    def fill(self, size: int, num_reqs: int, input_ids: Any, positions: Any, metadata: Any) -> Any:
        n, live = len(input_ids), len(metadata.seq_lens)
        for buffer, values in (
            (self.input_ids, input_ids), (self.positions, positions),
            (self.slot_mapping, metadata.slot_mapping), (self.seq_lens, metadata.seq_lens),
            (self.query_start_loc, metadata.query_start_loc),
        ):  # fmt: skip
            buffer[: len(values)].copy_(torch.from_numpy(values), non_blocking=True)
        self.slot_mapping[n:].fill_(-1)
        self.seq_lens[live:].zero_()
        self.query_start_loc[live + 1 :].fill_(n)
        width = metadata.block_table.shape[1]
        self.block_table[:live, :width] = torch.tensor(metadata.block_table)
        return solution.AttentionMetadata(
            self.query_start_loc[: num_reqs + 1], self.seq_lens[:num_reqs],
            self.block_table[:num_reqs], self.slot_mapping[:size],
            solution.count_decodes(metadata.query_start_loc),
            metadata.max_query_len, metadata.max_seq_len,
        )  # fmt: skip

    def capture(self) -> None:
        for size in sorted(self.sizes, reverse=True):
            if size <= self.max_num_seqs:
                self.capture_full(size)
        for size in sorted(self.sizes, reverse=True):
            self.capture_pieces(size)
