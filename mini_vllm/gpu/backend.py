"""The engine's attention on torch tensors: `TorchAttention` to read, `TritonAttention` to run on a GPU.

Mirrors `vllm/v1/attention/backends/triton_attn.py`: the cache's shape, the write, then one call for the whole
batch. Both have the interface of `mini_vllm/attention/`, on tensors instead of arrays, and keep its
four invariants. Left out: a builder of metadata for each backend, ALiBi, soft caps, quantised caches, cascade
attention; sliding windows in the Triton kernels.

Shapes below: n tokens in the batch, D numbers a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.cudagraph import AttentionCGSupport
from mini_vllm.gpu.attention import paged_attention, paged_decode_fixed


@dataclass
class AttentionMetadata:
    """`mini_vllm.attention.AttentionMetadata` with its arrays on the device.

    What decides how many programs a kernel is started with stays on the host as well, because to ask
    the device for a number is to wait for all that it has been given to do. Fields are those of
    `vllm/v1/attention/backend.py:353 CommonAttentionMetadata`.

    Attributes:
        query_start_loc: int32 `[num_reqs + 1]`.
        seq_lens: int32 `[num_reqs]`.
        block_table: int32 `[num_reqs, max_blocks]`.
        slot_mapping: int64 `[n]`; -1: a row of padding, whose K and V will not be read.
        num_decodes: so many requests, from the first on, have one row each in this step.
        max_query_len: no request has more rows.
        max_seq_len: no request has more tokens.
        sliding_window: a query attends to so many tokens at most, itself among them; None: to all.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    sliding_window: int | None = None


def count_decodes(query_start_loc: NDArray[np.int32]) -> int:
    """How many requests have one row each before the first that has more.

    The scheduler lists running requests before new ones, so most decodes come first by themselves. One
    behind a chunk is not counted, and counts as a chunk of one token. Upstream moves requests in the
    batch for the backends that ask for it; its Triton backend does not.

    Args:
        query_start_loc: int32 `[num_reqs + 1]`, numpy.

    Source: `vllm/v1/attention/backends/utils.py:533 split_decodes_and_prefills`.
    """
    longer = np.flatnonzero(np.diff(query_start_loc) != 1)
    return int(longer[0]) if len(longer) else len(query_start_loc) - 1


def get_kv_cache_shape(
    num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
) -> tuple[int, ...]:
    """Shape of one layer's cache: `[num_blocks, 2, block_size, num_kv_heads, head_size]`.

    The second axis is K, then V: a kernel sees the two as tensors of their own
    (`vllm/v1/attention/backends/triton_attn.py:313 TritonAttentionBackend.get_kv_cache_shape`).
    """
    return (num_blocks, 2, block_size, num_kv_heads, head_size)


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Write each token's K and V to its slot
    (`vllm/v1/attention/backends/triton_attn.py:720 TritonAttentionImpl.do_kv_cache_update`).

    A row of padding, slot -1, is written to slot 0. That is in the null block, which no request has,
    so it is never read, and the number of rows that are written depends on no value.

    Args:
        key, value: `[n, num_kv_heads, D]`.
        key_cache, value_cache: `[num_blocks, block_size, num_kv_heads, D]`; written in place.
        slot_mapping: int64 `[n]`, `block_id * block_size + offset`, or -1.
    """
    block_size = key_cache.shape[1]
    slots = slot_mapping.clamp(min=0)
    block_id, offset = slots // block_size, slots % block_size
    key_cache[block_id, offset] = key
    value_cache[block_id, offset] = value


class TorchAttention:
    """Paged attention in plain torch, on any device.

    A mixed batch goes one request after the other through `mini_vllm.gpu.attention.paged_attention`, the
    reference of the kernels, in float32. That loop asks the device for every length, so no CUDA graph
    can hold it. A batch of decodes alone asks for nothing (`paged_decode_fixed`), and a graph can. Both
    copy what they gather, so this is for reading and for comparing.

    Attributes:
        cudagraph_support: in which batches a graph may hold it
            (`vllm/v1/attention/backend.py:499 AttentionCGSupport`).
    """

    get_kv_cache_shape = staticmethod(get_kv_cache_shape)
    cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    supports_sliding_window = True

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: AttentionMetadata,
        output: Tensor | None = None,
    ) -> Tensor:
        """Store this step's K and V, then attend, causally, for every row of the flat batch.

        Args:
            query: `[n, num_heads, D]`, in the cache's dtype; n may be more than the requests have rows.
            key, value: `[n, num_kv_heads, D]`.
            kv_cache: one layer's cache, shaped by `get_kv_cache_shape`; written in place.
            attn_metadata: the step.
            output: `[n, num_heads * D]`, where the result goes; None: a new tensor. What rows of no
                request hold is left open.

        Returns:
            `[n, num_heads * D]` in the query's dtype: `output`, where it was given.
        """
        md = attn_metadata
        key_cache, value_cache = kv_cache.unbind(1)
        reshape_and_cache(key, value, key_cache, value_cache, md.slot_mapping)
        scale = query.shape[-1] ** -0.5
        if output is None:
            output = torch.zeros_like(query).flatten(1)
        num_reqs = len(md.seq_lens)
        if md.num_decodes == num_reqs:
            # No longer than the longest: a number of the host's, so a graph keeps that of its capture.
            table = md.block_table[:, : -(-md.max_seq_len // key_cache.shape[1])]
            attended = paged_decode_fixed(
                query[:num_reqs], key_cache, value_cache, table, md.seq_lens, scale,
                sliding_window=md.sliding_window,
            )  # fmt: skip
        else:
            attended = paged_attention(
                query, key_cache, value_cache, md.block_table, md.seq_lens, md.query_start_loc,
                scale, dtype=torch.float32, sliding_window=md.sliding_window,
            )  # fmt: skip
        output[: len(attended)] = attended.flatten(1)
        return output


class TritonAttention:
    """Paged attention by this package's Triton kernels, for any batch, inside of a CUDA graph too.

    No loop over requests, nothing gathered, and the host asks the device for nothing. The kernels are
    called as operations of torch (`ops.py`), so whatever records torch's operations sees them.

    Raises ValueError where kernels can run nowhere: torch sees no GPU, and Triton was not told to
    interpret them.
    """

    get_kv_cache_shape = staticmethod(get_kv_cache_shape)
    cudagraph_support = AttentionCGSupport.ALWAYS

    def __init__(self) -> None:
        import triton

        if not torch.cuda.is_available() and not triton.knobs.runtime.interpret:
            raise ValueError(
                "attention='triton' needs a GPU, and torch sees none: set TRITON_INTERPRET=1 before "
                "Python starts, and Triton's interpreter runs the kernels on the CPU, slowly"
            )
        from mini_vllm.gpu import ops

        self._ops = ops

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: AttentionMetadata,
        output: Tensor | None = None,
    ) -> Tensor:
        """As `TorchAttention.forward`
        (`vllm/model_executor/layers/attention/attention.py:437 Attention.forward`)."""
        md = attn_metadata
        key_cache, value_cache = kv_cache.unbind(1)
        self._ops.unified_kv_cache_update(key, value, key_cache, value_cache, md.slot_mapping)
        if output is None:
            output = query.new_empty(len(query), query.shape[1] * query.shape[2])
        self._ops.unified_attention_with_output(
            query, key_cache, value_cache, md.block_table, md.seq_lens, md.query_start_loc,
            query.shape[-1] ** -0.5, md.num_decodes, md.max_query_len, md.max_seq_len,
            output.view(query.shape),
        )  # fmt: skip
        return output
