"""All inputs of a step in one tensor, filled by one copy; each graph reads views of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from course.learner.labs import load_module
from tests.authors.graph_runners.lab import SOLUTION

solution = load_module(SOLUTION, "lab_05_06_solution_of_one_buffer")
padded_size, Captured = solution.padded_size, solution.Captured


class CaptureRunner(solution.CaptureRunner):  # type: ignore[misc, name-defined]
    """One int32 tensor holds ids, positions, starts, lengths, the table, and slots as pairs of halves."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        top, rows, width = self.sizes[-1], self.max_num_seqs, self.block_table.shape[1]
        parts = {
            "slot_mapping": 2 * top, "positions": 2 * top, "input_ids": top,
            "query_start_loc": rows + 1, "seq_lens": rows, "block_table": rows * width,
        }  # fmt: skip
        self.host = np.zeros(sum(parts.values()), np.int32)
        self.everything = torch.zeros(len(self.host), dtype=torch.int32, device=self.model.device)
        self.on_host: dict[str, Any] = {}
        at = 0
        for name, length in parts.items():
            values, tensor = self.host[at : at + length], self.everything[at : at + length]
            if length == 2 * top:
                values, tensor = values.view(np.int64), tensor.view(torch.int64)
            if name == "block_table":
                values, tensor = values.reshape(rows, width), tensor.view(rows, width)
            self.on_host[name] = values
            setattr(self, name, tensor)
            at += length

    def fill(self, size: int, num_reqs: int, input_ids: Any, positions: Any, metadata: Any) -> Any:
        put = self.on_host
        n, reqs = len(input_ids), len(metadata.seq_lens)
        put["input_ids"][:n], put["positions"][:n] = input_ids, positions
        put["slot_mapping"][:] = -1
        put["slot_mapping"][:n] = metadata.slot_mapping
        put["query_start_loc"][:] = n
        put["query_start_loc"][: reqs + 1] = metadata.query_start_loc
        put["seq_lens"][:] = 0
        put["seq_lens"][:reqs] = metadata.seq_lens
        put["block_table"][:reqs, : metadata.block_table.shape[1]] = metadata.block_table
        self.everything.copy_(torch.from_numpy(self.host))
        return solution.AttentionMetadata(
            self.query_start_loc[: num_reqs + 1], self.seq_lens[:num_reqs],
            self.block_table[:num_reqs], self.slot_mapping[:size],
            solution.count_decodes(metadata.query_start_loc),
            metadata.max_query_len, metadata.max_seq_len,
        )  # fmt: skip
