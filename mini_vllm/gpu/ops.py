"""The Triton kernels as operations of torch, by vLLM's names.

To torch a Triton kernel is a Python function that takes addresses. As an operation it says what it reads
and what it writes, so whatever sees torch's operations sees this one too, and as one: a compiler that
splits the model here, a profiler, the recording stand-in on a CPU (`graph_standin`). The names are those of
`vllm/model_executor/layers/attention/attention.py`, and as there no operation returns a tensor: the
result goes where the caller says, because a graph must find it at the same address on every replay.

Left out: a version for tensors without memory, because these return nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from mini_vllm.gpu.kernels.entry import attention
from mini_vllm.gpu.kernels.reshape_and_cache import reshape_and_cache
from mini_vllm.gpu.kernels.wna16 import wna16_gemm as _wna16_gemm


def _attention(*args: Any) -> None:
    *inputs, num_decodes, max_query_len, max_seq_len, output = args
    sizes = {
        "num_decodes": num_decodes, "max_query_len": max_query_len, "max_seq_len": max_seq_len
    }  # fmt: skip
    attention(*inputs, **sizes, out=output)


def _linear(x: Any, packed: Any, scale: Any, zero_point: Any, bits: int, output: Any) -> None:
    _wna16_gemm(x, packed, scale, bits, zero_point=zero_point, out=output)


_library = torch.library.Library("mini_vllm", "DEF")
_library.define(
    "unified_kv_cache_update(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping) -> ()"
)
_library.define(
    "unified_attention_with_output(Tensor query, Tensor key_cache, Tensor value_cache, "
    "Tensor block_table, Tensor seq_lens, Tensor query_start_loc, float scale, int num_decodes, "
    "int max_query_len, int max_seq_len, Tensor(a!) output) -> ()"
)
_library.define(
    "wna16_gemm(Tensor x, Tensor weight_packed, Tensor weight_scale, Tensor? zero_point, int bits, "
    "Tensor(a!) output) -> ()"
)
_library.impl("unified_kv_cache_update", reshape_and_cache, "CompositeExplicitAutograd")
_library.impl("unified_attention_with_output", _attention, "CompositeExplicitAutograd")
_library.impl("wna16_gemm", _linear, "CompositeExplicitAutograd")

unified_kv_cache_update = torch.ops.mini_vllm.unified_kv_cache_update
"""`kernels/reshape_and_cache.py`."""
unified_attention_with_output = torch.ops.mini_vllm.unified_attention_with_output
"""`kernels/entry.py`, on `output` `[n, num_heads, D]`."""
wna16_gemm = torch.ops.mini_vllm.wna16_gemm
"""`kernels/wna16.py`, on `output` `[n, out]`."""
