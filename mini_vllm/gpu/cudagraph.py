"""CUDA graphs of the torch model: captured once at the start, replayed step after step.

Mirrors `vllm/compilation/cuda_graph.py:145 CUDAGraphWrapper` and, of the model runner,
`vllm/v1/worker/gpu_model_runner.py:6373 GPUModelRunner.capture_model`. Modes, ladder and dispatcher are those of
`mini_vllm/cudagraph/`. On a GPU the graphs are `torch.cuda.CUDAGraph`; on a CPU the recording stand-in takes their
place (`graph_standin`), and nothing else is different.

What a replay needs is spread over three places, as upstream. `model_runner.py` keeps the buffers that never move
and pads what is in them. The dispatcher says which graph. A wrapper captures or replays what it is told.

Left out: an estimate of the graphs' memory before the KV cache is sized, a graph for each count of LoRA
adapters, drafts, sampling inside of a graph.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from mini_vllm.cudagraph import BatchDescriptor, CUDAGraphMode
from mini_vllm.gpu.graph_standin import graphs_for


@dataclass
class ForwardContext:
    """What the wrappers are told of a step (`vllm/forward_context.py:129 ForwardContext`).

    Attributes:
        cudagraph_runtime_mode: NONE, PIECEWISE or FULL: who captures or replays.
        batch_descriptor: under which key.
        capturing_enabled: whether a key without a graph may be captured. False after the start, so that no
            request ever waits for a capture (`vllm/compilation/monitor.py:90
            validate_cudagraph_capturing_enabled`).
    """

    cudagraph_runtime_mode: CUDAGraphMode = CUDAGraphMode.NONE
    batch_descriptor: BatchDescriptor | None = None
    capturing_enabled: bool = False

    @contextmanager
    def step(self, mode: CUDAGraphMode, descriptor: BatchDescriptor | None) -> Iterator[None]:
        """Run a step under this mode and key."""
        self.cudagraph_runtime_mode, self.batch_descriptor = mode, descriptor
        try:
            yield
        finally:
            self.cudagraph_runtime_mode, self.batch_descriptor = CUDAGraphMode.NONE, None


def weak_ref_tensors(output: Any) -> Any:
    """The same tensors on the same memory, which do not keep it
    (`vllm/utils/torch_utils.py:763 weak_ref_tensors`).

    The pool may then give the memory to the next graph that is captured. So the result is good from a replay
    to the next one, of any graph in the pool.
    """

    def weak(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        size = 1 + sum((n - 1) * s for n, s in zip(leaf.shape, leaf.stride(), strict=True))
        storage = torch._C._construct_storage_from_data_pointer(
            leaf.data_ptr(), leaf.device, size * leaf.itemsize
        )
        empty = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        return empty.set_(storage, 0, leaf.shape, leaf.stride())

    return tree_map(weak, output)


@dataclass
class CUDAGraphEntry:
    """One key's graph (`vllm/compilation/cuda_graph.py:128 CUDAGraphEntry`)."""

    cudagraph: Any
    output: Any
    input_addresses: list[int]


class CUDAGraphWrapper:
    """Captures a function once for each key, then replays it.

    It chooses nothing: mode and key come from the context, and a mode that is not its own means that the
    function is simply called. It copies nothing: the caller's tensors must be where they were at capture.

    Args:
        runnable: called with tensors and anything else; the tensors stay where they are.
        runtime_mode: FULL or PIECEWISE, the mode in which this wrapper acts.
        context: what the step is.
        graphs: `graphs_for(device)`.
        pool: the memory pool, shared by all graphs of the model.
    """

    def __init__(
        self,
        runnable: Callable[..., Any],
        runtime_mode: CUDAGraphMode,
        context: ForwardContext,
        graphs: Any,
        pool: Any,
    ) -> None:
        if runtime_mode not in (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE):
            raise ValueError(f"a wrapper is for FULL or PIECEWISE, got {runtime_mode}")
        self.runnable = runnable
        self.runtime_mode = runtime_mode
        self.context = context
        self.graphs = graphs
        self.graph_pool = pool
        self.entries: dict[BatchDescriptor, CUDAGraphEntry] = {}

    def __call__(self, *args: Any) -> Any:
        """Call, capture or replay. After a capture the result's numbers are not there yet.

        Raises ValueError for a key without a graph once capturing is over, and where an input has moved
        since the capture. Upstream looks at addresses only under `VLLM_LOGGING_LEVEL=DEBUG`.
        """
        context = self.context
        if context.cudagraph_runtime_mode is not self.runtime_mode:
            return self.runnable(*args)
        key = context.batch_descriptor
        assert key is not None
        addresses = [x.data_ptr() for x in tree_leaves(args) if isinstance(x, Tensor)]
        entry = self.entries.get(key)
        if entry is None:
            return self._capture(key, args, addresses)
        if addresses != entry.input_addresses:
            moved = [i for i, (a, b) in enumerate(zip(addresses, entry.input_addresses)) if a != b]
            raise ValueError(
                f"the graph of {key} was captured on other tensors: of its {len(entry.input_addresses)} "
                f"inputs, number {moved} has moved since, and a graph reads where it read at capture"
            )
        entry.cudagraph.replay()
        return entry.output

    def _capture(self, key: BatchDescriptor, args: tuple[Any, ...], addresses: list[int]) -> Any:
        if not self.context.capturing_enabled:
            raise ValueError(
                f"no {self.runtime_mode} graph was captured for {key}, and capturing is over"
            )
        cudagraph = self.graphs.CUDAGraph()
        with self.graphs.graph(cudagraph, pool=self.graph_pool):
            output = self.runnable(*args)
        self.entries[key] = CUDAGraphEntry(cudagraph, weak_ref_tensors(output), addresses)
        # The tensors themselves, so that the next piece's capture cannot be given their memory.
        return output


@dataclass
class CaptureStats:
    """What the start captured.

    Attributes:
        descriptors: mode and key, in the order of capture.
        graphs: how many graphs that made: a key of PIECEWISE has one for each piece.
    """

    descriptors: list[tuple[CUDAGraphMode, BatchDescriptor]] = field(default_factory=list)
    graphs: int = 0


class GraphedLlama:
    """The model under graphs: whole for FULL, in pieces for PIECEWISE, as it is for NONE.

    Args:
        model: a `LlamaForCausalLM`.
        split: makes a `SplitLlama` of the model and a wrap.
    """

    def __init__(self, model: Any, split: Callable[..., Any]) -> None:
        self.model = model
        self.context = ForwardContext()
        self.graphs = graphs_for(model.device)
        self.graph_pool = self.graphs.graph_pool_handle()
        self.full = self._wrap(CUDAGraphMode.FULL, model.forward)
        self.split = split(model, lambda piece: self._wrap(CUDAGraphMode.PIECEWISE, piece))

    def _wrap(self, mode: CUDAGraphMode, runnable: Callable[..., Any]) -> CUDAGraphWrapper:
        return CUDAGraphWrapper(runnable, mode, self.context, self.graphs, self.graph_pool)

    def forward(
        self, mode: CUDAGraphMode, descriptor: BatchDescriptor | None, *args: Any
    ) -> Tensor:
        """`LlamaForCausalLM.forward` on `args`, under this mode."""
        with self.context.step(mode, descriptor):
            run = self.split.forward if mode is CUDAGraphMode.PIECEWISE else self.full
            result: Tensor = run(*args)
        return result

    def capture(
        self,
        descs: list[tuple[CUDAGraphMode, list[BatchDescriptor]]],
        dummy_args: Callable[[CUDAGraphMode, BatchDescriptor], tuple[Any, ...]],
    ) -> CaptureStats:
        """Warm up and capture every graph there will ever be
        (`vllm/v1/worker/gpu_model_runner.py:6498 GPUModelRunner._capture_cudagraphs`).

        Args:
            descs: from `CudagraphDispatcher.get_capture_descs`: pieces first, the largest first.
            dummy_args: the arguments of `forward` for a key, on the buffers that a step will use.
        """
        stats = CaptureStats()
        self.context.capturing_enabled = True
        gc.collect()
        try:
            for mode, descriptors in descs:
                for descriptor in descriptors:
                    args = dummy_args(mode, descriptor)
                    # Once as it is: kernels are compiled and libraries find their memory before the capture.
                    self.forward_uncaptured(mode, *args)
                    self.graphs.synchronize()
                    self.forward(mode, descriptor, *args)
                    stats.descriptors.append((mode, descriptor))
        finally:
            self.context.capturing_enabled = False
        self.graphs.synchronize()
        stats.graphs = sum(len(w.entries) for w in [self.full, *self.split.pieces])
        return stats

    def forward_uncaptured(self, mode: CUDAGraphMode, *args: Any) -> Tensor:
        """The same code as under `mode`, with nothing captured or replayed."""
        with self.context.step(CUDAGraphMode.NONE, None):
            run = self.split.forward if mode is CUDAGraphMode.PIECEWISE else self.full
            result: Tensor = run(*args)
        return result
