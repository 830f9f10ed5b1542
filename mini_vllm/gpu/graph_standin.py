"""What `torch.cuda` has for graphs, on a CPU: it records and replays, and refuses what a GPU cannot do.

`graphs_for(device)` gives `torch.cuda` for a GPU and this module for a CPU. Both have `CUDAGraph`, `graph`,
`graph_pool_handle`, `is_current_stream_capturing` and `synchronize`, so the code that captures a model is
the same, and the device is the only difference:

    graphs = graphs_for(model.device)
    recorded = graphs.CUDAGraph()
    with graphs.graph(recorded, pool=pool):
        output = model(static_input)          # nothing is computed: `output` holds NaN
    static_input.copy_(numbers)
    recorded.replay()                         # now `output` holds the result

A capture writes each operation down with the addresses of its tensors and runs none. A replay runs exactly
these, on these addresses, and looks at no Python again. Where a GPU would go on with wrong numbers, the
stand-in raises `GraphError`, whose `rule` says which of `RULES` was broken.

It sees what goes through torch's dispatcher, and what `Tensor`'s methods bring to the host. A kernel that is
started past the dispatcher must be registered as an operation (`ops.py`), as vLLM registers its own. What
it cannot see: all memory is the host's, so `.to("cpu")` and a copy from memory that is not page-locked
look like copies on the device; there are no streams; and how long anything takes says nothing of a GPU.

The rules are those of https://docs.nvidia.com/dl-cuda-graph/cuda-graph-basics/constraints.html.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from mini_vllm.gpu.standin.graph import CUDAGraph, graph
from mini_vllm.gpu.standin.pool import Handle, MemPool
from mini_vllm.gpu.standin.rules import RULES, GraphError, capturing
from mini_vllm.gpu.standin.watch import check_readable, watch

__all__ = [
    "RULES",
    "CUDAGraph",
    "GraphError",
    "MemPool",
    "check_readable",
    "graph",
    "graph_pool_handle",
    "graphs_for",
    "is_current_stream_capturing",
    "synchronize",
    "watch",
]


def graphs_for(device: torch.device | str) -> Any:
    """`torch.cuda` for a GPU, this module for a CPU."""
    return torch.cuda if torch.device(device).type == "cuda" else sys.modules[__name__]


def is_current_stream_capturing() -> bool:
    """Whether this thread is in a capture."""
    return capturing()


def graph_pool_handle() -> Handle:
    """A name for a pool that several graphs may share."""
    return MemPool.new_handle()


def synchronize(device: Any = None) -> None:
    """On a GPU: wait for the device. Raises GraphError in a capture, else does nothing."""
    if capturing():
        raise GraphError("host sync", "synchronize() in a capture")
