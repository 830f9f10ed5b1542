"""A dictionary of functions, a copy inside of the whole model's graph, rows picked by index."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

import torch

from course.learner.labs import load_module
from mini_vllm.gpu.graph_standin import graphs_for
from mini_vllm.gpu.split_llama import SplitLlama
from tests.authors.graph_runners.lab import SOLUTION

solution = load_module(SOLUTION, "lab_05_06_solution_of_closures")


def padded_size(sizes: Any, num_tokens: int) -> int | None:
    """By bisection."""
    at = bisect.bisect_left(sizes, num_tokens)
    return None if at == len(sizes) else sizes[at]


class Captured:
    """Warms up three times, as PyTorch's page does, and keeps one closure a size."""

    def __init__(self, function: Callable[..., Any], graphs: Any, pool: Any) -> None:
        self.function, self.graphs, self.pool = function, graphs, pool
        self.replays: dict[int, Callable[[], Any]] = {}

    def capture(self, size: int, *args: Any) -> Any:
        for _ in range(3):
            self.function(*args)
        graph = self.graphs.CUDAGraph()
        with self.graphs.graph(graph, pool=self.pool):
            output = self.function(*args)

        def replay() -> Any:
            graph.replay()
            return output

        self.replays[size] = replay
        return output

    def replay(self, size: int) -> Any:
        return self.replays[size]()


class CaptureRunner(solution.CaptureRunner):  # type: ignore[misc, name-defined]
    """The result of a whole model's graph is copied by the graph, into a buffer outside of the pool."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        graphs = graphs_for(self.model.device)
        pool = graphs.graph_pool_handle()
        config, device = self.model.config, self.model.device
        self.results = torch.zeros(self.sizes[-1], config.hidden_size, device=device)

        def forward(ids: Any, *rest: Any) -> Any:
            return self.results[: len(ids)].copy_(self.model.forward(ids, *rest))

        self.full = Captured(forward, graphs, pool)
        self.pieces = [Captured(piece, graphs, pool) for piece in SplitLlama(self.model).pieces]

    def run(self, input_ids: Any, positions: Any, metadata: Any) -> Any:
        n, reqs = len(input_ids), len(metadata.seq_lens)
        size = padded_size(self.sizes, n)
        if size is None:
            return self.run_eagerly(input_ids, positions, metadata)
        whole = metadata.max_query_len == 1 and size <= self.max_num_seqs
        on_device = self.fill(size, size if whole else reqs, input_ids, positions, metadata)
        found = self.full.replay(size) if whole else self.replay_pieces(size, on_device)
        return found.index_select(0, torch.arange(n, device=found.device))
