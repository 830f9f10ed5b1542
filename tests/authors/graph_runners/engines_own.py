"""The engine's own wrapper, dispatcher and pieces behind the lab's calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from course.learner.labs import load_module
from mini_vllm.cudagraph import BatchDescriptor, CudagraphDispatcher, CUDAGraphMode
from tests.authors.graph_runners.lab import SOLUTION, engine_graphs

solution = load_module(SOLUTION, "lab_05_06_solution_of_engines_own")


def padded_size(sizes: Sequence[int], num_tokens: int) -> int | None:
    """Asks the dispatcher."""
    dispatcher = CudagraphDispatcher(CUDAGraphMode.FULL, sizes, max(sizes))
    mode, key = dispatcher.dispatch(num_tokens)
    return key.num_tokens if mode else None


class Captured:
    """`CUDAGraphWrapper` for a size."""

    def __init__(self, function: Any, graphs: Any, pool: Any) -> None:
        self.context = engine_graphs().ForwardContext()
        self.wrapper = engine_graphs().CUDAGraphWrapper(
            function, CUDAGraphMode.FULL, self.context, graphs, pool
        )
        self.args: dict[int, Any] = {}

    def capture(self, size: int, *args: Any) -> Any:
        self.wrapper(*args)
        self.args[size] = args
        self.context.capturing_enabled = True
        result = self._call(size)
        self.context.capturing_enabled = False
        return result

    def replay(self, size: int) -> Any:
        return self._call(size)

    def _call(self, size: int) -> Any:
        with self.context.step(CUDAGraphMode.FULL, BatchDescriptor(size)):
            return self.wrapper(*self.args[size])


class CaptureRunner(solution.CaptureRunner):  # type: ignore[misc, name-defined]
    """`GraphedLlama` in place of everything that is captured."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        mode = CUDAGraphMode.FULL_AND_PIECEWISE
        self.dispatcher = CudagraphDispatcher(mode, self.sizes, self.max_num_seqs)
        self.graphed = engine_graphs().GraphedLlama(self.model)

    def capture(self) -> None:
        self.graphed.capture(self.dispatcher.get_capture_descs(), self._dummy)

    def _dummy(self, mode: Any, key: Any) -> tuple[Any, ...]:
        n = key.num_tokens
        self.slot_mapping.fill_(-1)
        self.seq_lens.fill_(1)
        metadata = None
        if mode is CUDAGraphMode.FULL:
            metadata = solution.AttentionMetadata(
                self.query_start_loc[: n + 1], self.seq_lens[:n], self.block_table[:n],
                self.slot_mapping[:n], n, 1, self.max_model_len,
            )  # fmt: skip
        return self.input_ids[:n], self.positions[:n], self.kv_caches, metadata

    def run(self, input_ids: Any, positions: Any, metadata: Any) -> Any:
        n, num_reqs = len(input_ids), len(metadata.seq_lens)
        mode, key = self.dispatcher.dispatch(n, metadata.max_query_len == 1)
        if not mode:
            return self.run_eagerly(input_ids, positions, metadata)
        size = key.num_tokens
        reqs = num_reqs if key.num_reqs is None else key.num_reqs
        on_device = self.fill(size, reqs, input_ids, positions, metadata)
        found = self.graphed.forward(
            mode, key, self.input_ids[:size], self.positions[:size], self.kv_caches, on_device
        )
        return torch.empty_like(found[:n]).copy_(found[:n])
