"""Two pools, one of pieces and one of whole models; static views made once; results through numpy."""

from __future__ import annotations

from typing import Any

import torch

from course.learner.labs import load_module
from mini_vllm.gpu.graph_standin import graphs_for
from mini_vllm.gpu.split_llama import SplitLlama
from tests.authors.graph_runners.lab import SOLUTION

solution = load_module(SOLUTION, "lab_05_06_solution_of_pool_per_kind")
padded_size, Captured = solution.padded_size, solution.Captured


class CaptureRunner(solution.CaptureRunner):  # type: ignore[misc, name-defined]
    """Pieces never run while a whole model does, but nothing says that they must share."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        graphs = graphs_for(self.model.device)
        pool = graphs.graph_pool_handle()
        self.pieces = [Captured(piece, graphs, pool) for piece in SplitLlama(self.model).pieces]
        self.views = {size: (self.input_ids[:size], self.positions[:size]) for size in self.sizes}

    def capture_pieces(self, size: int) -> None:
        rows = self.pieces[0].capture(size, *self.views[size])
        for piece in self.pieces[1:]:
            rows = piece.capture(size, *rows[:3], rows[-1])

    def run(self, input_ids: Any, positions: Any, metadata: Any) -> Any:
        return torch.tensor(super().run(input_ids, positions, metadata).cpu().numpy()).to(
            self.model.device
        )
