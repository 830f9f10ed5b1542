"""CUDA graphs, without CUDA: which graphs there are, and which one a step runs under.

`modes.py` first (the modes, the ladder of sizes), then `dispatcher.py` (the table a step is looked up in),
`graph.py` (recording and replay) and `program.py` (the Llama as a list of kernels). The model runner that
puts them together is `worker/graph_forward.py`.
"""

from __future__ import annotations

from mini_vllm.cudagraph.dispatcher import CudagraphDispatcher, is_uniform_decode
from mini_vllm.cudagraph.graph import (
    Graph,
    GraphEntry,
    GraphPool,
    GraphRunner,
    Kernel,
    Launch,
    LaunchCounter,
    PiecewiseGraphRunner,
)
from mini_vllm.cudagraph.modes import (
    AttentionCGSupport,
    BatchDescriptor,
    CUDAGraphMode,
    adjust_cudagraph_sizes_for_spec_decode,
    cudagraph_capture_sizes,
    resolve_cudagraph_mode,
)
from mini_vllm.cudagraph.program import build_program

__all__ = [
    "AttentionCGSupport",
    "BatchDescriptor",
    "CUDAGraphMode",
    "CudagraphDispatcher",
    "Graph",
    "GraphEntry",
    "GraphPool",
    "GraphRunner",
    "Kernel",
    "Launch",
    "LaunchCounter",
    "PiecewiseGraphRunner",
    "adjust_cudagraph_sizes_for_spec_decode",
    "build_program",
    "cudagraph_capture_sizes",
    "is_uniform_decode",
    "resolve_cudagraph_mode",
]
