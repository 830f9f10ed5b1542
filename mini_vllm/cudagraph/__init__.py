"""CUDA graphs, without CUDA: which graphs there are, and which one a step runs under.

`modes.py` first (the modes, the ladder of sizes), then `dispatcher.py` (the table a step is looked up in).
"""

from __future__ import annotations

from mini_vllm.cudagraph.dispatcher import CudagraphDispatcher, is_uniform_decode
from mini_vllm.cudagraph.modes import (
    AttentionCGSupport,
    BatchDescriptor,
    CUDAGraphMode,
    adjust_cudagraph_sizes_for_spec_decode,
    cudagraph_capture_sizes,
    resolve_cudagraph_mode,
)

__all__ = [
    "AttentionCGSupport",
    "BatchDescriptor",
    "CUDAGraphMode",
    "CudagraphDispatcher",
    "adjust_cudagraph_sizes_for_spec_decode",
    "cudagraph_capture_sizes",
    "is_uniform_decode",
    "resolve_cudagraph_mode",
]
