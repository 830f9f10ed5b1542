"""`CUDAGraph` and `graph`, as torch.cuda has them."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import Any

import torch

from mini_vllm.gpu.standin.capture import (
    Capture,
    HostCalls,
    Recording,
    outside,
)
from mini_vllm.gpu.standin.pool import POISON, Handle, MemPool
from mini_vllm.gpu.standin.rules import (
    GraphError,
    capturing,
    replaying,
    set_capturing,
    tensors_of,
)
from mini_vllm.gpu.standin.watch import unreadable


class CUDAGraph:
    """A recording, made by `graph` and run by `replay`. As `torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._recording: Recording | None = None
        self._release: Any = None

    @property
    def recording(self) -> Recording:
        """What was captured. Raises GraphError if nothing was."""
        if self._recording is None:
            raise GraphError("not captured", "this graph is empty")
        return self._recording

    @property
    def recorded(self) -> bool:
        """Whether it holds a recording."""
        return self._recording is not None

    @property
    def number(self) -> int:
        """Of the recording, as messages have it."""
        return self.recording.number

    @property
    def num_kernels(self) -> int:
        """Operations that a GPU would start a kernel for."""
        return len(self.recording.kernels)

    def pool(self) -> Handle:
        """The name of its pool, to share it."""
        return self.recording.handle

    def hold(self, recording: Recording) -> None:
        """Take a recording; it is given up with the graph, or by `reset`."""
        self._recording = recording
        self._release = weakref.finalize(self, recording.release)

    def reset(self) -> None:
        """Forget the recording. The graph can be captured again."""
        if self._recording is not None:
            self._release()
            self._recording = None

    def replay(self) -> None:
        """Run what was recorded. Raises GraphError where a GPU would read or write something else."""
        graph = self.recording
        name = f"graph {graph.number}"
        if capturing():
            raise GraphError("one capture at a time", f"replay of {name} in a capture")
        for key, (_, what) in graph.uses.items():
            held = outside[key]
            if held.freed():
                raise GraphError("freed memory", f"{name} was captured on {what}")
            if held.storage.data_ptr() != held.start:
                raise GraphError("moved memory", f"{name} was captured on {what}")
        for block, (pool, what) in graph.reads.items():
            if why := pool.unreadable(block):
                raise unreadable(block, why, f"{name} reads {what}")
        graph.pool.start_replay(graph.number, graph.before, graph.spared)
        with torch.inference_mode(), replaying():
            for i, kernel in enumerate(graph.kernels):
                try:
                    result = kernel.func(*kernel.args, **kernel.kwargs)
                except Exception as error:
                    error.add_note(f"in the replay of {name}, operation {i}, {kernel.func}")
                    raise
                if kernel.outputs:
                    for output, new in zip(kernel.outputs, tensors_of(result), strict=True):
                        output.copy_(new)
            for block in graph.given_up:
                block.memory.fill_(POISON)


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
        self._capture = capture = Capture(self._handle)
        set_capturing(True)
        self._modes.enter_context(capture)
        self._modes.enter_context(HostCalls(capture))

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._modes.close()
        set_capturing(False)
        if kind is None:
            self.cuda_graph.hold(self._capture.finish())
        else:
            self._capture.abandon()
