"""`CUDAGraph` and `graph`, as torch.cuda has them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from typing import Any

import torch

from mini_vllm.gpu.graph_standin.capture import (
    Capture,
    HostCalls,
    Kernel,
    allocates_only,
    forget,
    outside,
)
from mini_vllm.gpu.graph_standin.pool import Block, Handle, MemPool
from mini_vllm.gpu.graph_standin.rules import (
    GraphError,
    capturing,
    replaying,
    set_capturing,
    tensors_of,
)
from mini_vllm.gpu.graph_standin.watch import unreadable

_numbers = itertools.count(1)


class CUDAGraph:
    """A recording, made by `graph` and run by `replay`. As `torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.number = next(_numbers)
        self.kernels: list[Kernel] = []
        self.recorded = False
        self._pool: MemPool | None = None
        self._handle: Handle | None = None
        self._blocks: list[Block] = []
        self._spared: AbstractSet[Block] = frozenset()
        self._reads: dict[Block, tuple[MemPool, str]] = {}
        self._uses: dict[int, tuple[int, str]] = {}  # storage -> aliases, and what it is
        self._end = weakref.finalize(self, forget, self._uses)

    @property
    def num_kernels(self) -> int:
        """Operations that a GPU would start a kernel for."""
        return sum(not allocates_only(kernel.func) for kernel in self.kernels)

    def pool(self) -> Handle:
        """The name of its pool, to share it."""
        if self._handle is None:
            raise GraphError("not captured", f"graph {self.number} has no pool yet")
        return self._handle

    def reset(self) -> None:
        """Forget the recording. The graph can be captured again."""
        forget(self._uses)
        if self._pool is not None:
            self._pool.replayed.pop(self.number, None)
            self._pool.forget(self._blocks)
        self.kernels, self._blocks, self._spared, self._reads = [], [], frozenset(), {}
        self.recorded, self._pool, self._handle = False, None, None

    def replay(self) -> None:
        """Run what was recorded. Raises GraphError where a GPU would read or write something else."""
        if capturing():
            raise GraphError("one capture at a time", f"replay of graph {self.number} in a capture")
        if not self.recorded or self._pool is None:
            raise GraphError("not captured", f"graph {self.number}")
        for key, (_, what) in self._uses.items():
            held = outside[key]
            if held.freed():
                raise GraphError("freed memory", f"graph {self.number} was captured on {what}")
            if held.storage.data_ptr() != held.start:
                raise GraphError("moved memory", f"graph {self.number} was captured on {what}")
        for block, (pool, what) in self._reads.items():
            if why := pool.unreadable(block):
                raise unreadable(block, why, f"graph {self.number} reads {what}")
        self._pool.start_replay(self.number, self._spared)
        with torch.inference_mode(), replaying():
            for i, kernel in enumerate(self.kernels):
                try:
                    result = kernel.func(*kernel.args, **kernel.kwargs)
                except Exception as error:
                    error.add_note(
                        f"in the replay of graph {self.number}, operation {i}, {kernel.func}"
                    )
                    raise
                for output, new in zip(
                    kernel.outputs, tensors_of(result), strict=kernel.outputs != []
                ):
                    output.copy_(new)


class graph:
    """Capture what is called in the `with` block. As `torch.cuda.graph`.

    Args:
        cuda_graph: a `CUDAGraph` that holds no recording.
        pool: a name from `graph_pool_handle` or `CUDAGraph.pool`; None: a pool of its own.
        stream, capture_error_mode: for a GPU; not looked at.
    """

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Handle | None = None,
        stream: Any = None,
        capture_error_mode: str = "global",
    ) -> None:
        self.cuda_graph = cuda_graph
        self._handle = MemPool.new_handle() if pool is None else pool
        self._modes = ExitStack()

    def __enter__(self) -> None:
        if capturing():
            raise GraphError("one capture at a time", "a capture began inside of another")
        if self.cuda_graph.recorded:
            raise GraphError(
                "captured twice", f"graph {self.cuda_graph.number}: reset() it, or make another"
            )
        capture = Capture(self.cuda_graph, self._handle)
        self._capture = capture
        set_capturing(True)
        self._modes.enter_context(capture)
        self._modes.enter_context(HostCalls(capture))

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._modes.close()
        set_capturing(False)
        if kind is None:
            self._capture.finish()
        else:
            self._capture.abandon()
