"""No pieces: the model runs as it is, and its attention ends one capture and begins the next.

As vLLM does under VLLM_USE_BREAKABLE_CUDAGRAPH.
"""

from __future__ import annotations

from typing import Any

import torch

from course.learner.labs import load_module
from mini_vllm.gpu.graph_standin import graphs_for
from tests.authors.graph_runners.lab import SOLUTION

solution = load_module(SOLUTION, "lab_05_06_solution_of_broken_at_attention")
padded_size, Captured = solution.padded_size, solution.Captured


class Breaks:
    """In place of the attention backend during a capture."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.parts: list[Any] = []  # graphs, and between them attention's tensors
        self.open: Any = None

    def begin(self) -> None:
        graph = self.runner.graphs.CUDAGraph()
        self.parts.append(graph)
        self.open = self.runner.graphs.graph(graph, pool=self.runner.pool)
        self.open.__enter__()

    def end(self) -> None:
        self.open.__exit__(None, None, None)

    def forward(self, query: Any, key: Any, value: Any, kv_cache: Any, metadata: Any) -> Any:
        room = query.new_empty(len(query), query[0].numel())
        self.end()
        self.parts.append((query, key, value, kv_cache, room))
        self.begin()
        return room


class CaptureRunner(solution.CaptureRunner):  # type: ignore[misc, name-defined]
    """Keeps, for each size, graphs and the attention between them, in order."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.graphs = graphs_for(self.model.device)
        self.pool = self.graphs.graph_pool_handle()
        self.broken: dict[int, tuple[list[Any], Any]] = {}

    def capture_pieces(self, size: int) -> None:
        self.slot_mapping.fill_(-1)
        ids, positions = self.input_ids[:size], self.positions[:size]
        attention = self.model.attention
        metadata = self.fill(
            size, 1, *(x[:1].cpu().numpy() for x in (self.input_ids, self.positions)), ONE
        )
        self.model.forward(ids, positions, self.kv_caches, metadata)
        self.model.attention = breaks = Breaks(self)
        try:
            breaks.begin()
            output = self.model.forward(ids, positions, self.kv_caches, None)
            breaks.end()
        finally:
            self.model.attention = attention
        self.broken[size] = breaks.parts, output

    def replay_pieces(self, size: int, metadata: Any) -> Any:
        parts, output = self.broken[size]
        for part in parts:
            if isinstance(part, tuple):
                *inputs, room = part
                room.copy_(self.model.attention.forward(*inputs, metadata))
            else:
                part.replay()
        return output


ONE = solution.HostMetadata(
    query_start_loc=torch.tensor([0, 1]).int().numpy(),
    seq_lens=torch.tensor([1]).int().numpy(),
    block_table=torch.zeros(1, 1).int().numpy(),
    slot_mapping=torch.tensor([-1]).numpy(),
    block_size=1,
)
"""One token of nobody's."""
