"""Write K and V of a step to their slots of a paged cache, in Triton.

Mirrors `vllm/v1/attention/ops/triton_reshape_and_cache_flash.py:18 reshape_and_cache_kernel_flash`. Left out:
quantised caches, the layout with the heads outside.

A program copies some 4 KiB of K and as much of V: two tokens of 8 KV heads of 128 numbers in 16 bits, or
sixteen of a small model. No two tokens of a step have the same slot, so no two programs write to one
address; a row of padding has slot -1 and writes nothing. In torch the same takes two index operations, and
the arithmetic on slots before them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TILE_BYTES = 4096


@triton.jit
def copy_to_slot(
    key_ptr,  # [num_tokens, num_kv_heads, head_size]
    value_ptr,
    key_cache_ptr,  # [num_blocks, block_size, num_kv_heads, head_size]
    value_cache_ptr,
    slot_mapping_ptr,  # int64 [num_tokens]
    key_stride_token,  # strides count elements; the last axis of each tensor has stride 1
    key_stride_head,
    value_stride_token,
    value_stride_head,
    key_cache_stride_block,
    key_cache_stride_slot,
    key_cache_stride_head,
    value_cache_stride_block,
    value_cache_stride_slot,
    value_cache_stride_head,
    num_tokens,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,  # tokens of a program; a power of two
    NUM_KV_HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,  # a power of two
    HEAD_SIZE: tl.constexpr,
    HEAD_PADDED: tl.constexpr,  # a power of two
):
    """`TOKENS` tokens. Grid: (cdiv(num_tokens, TOKENS),)."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slot_mapping_ptr + token, mask=token < num_tokens, other=-1)
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    head = tl.arange(0, HEADS_PADDED)[None, :, None]
    dim = tl.arange(0, HEAD_PADDED)[None, None, :]
    there = (slot >= 0)[:, None, None] & (head < NUM_KV_HEADS) & (dim < HEAD_SIZE)

    key_at = (token * key_stride_token)[:, None, None] + head * key_stride_head + dim
    key = tl.load(key_ptr + key_at, mask=there)
    key_to = block * key_cache_stride_block + offset * key_cache_stride_slot
    key_to = key_to[:, None, None] + head * key_cache_stride_head + dim
    tl.store(key_cache_ptr + key_to, key, mask=there)

    value_at = (token * value_stride_token)[:, None, None] + head * value_stride_head + dim
    value = tl.load(value_ptr + value_at, mask=there)
    value_to = block * value_cache_stride_block + offset * value_cache_stride_slot
    value_to = value_to[:, None, None] + head * value_cache_stride_head + dim
    tl.store(value_cache_ptr + value_to, value, mask=there)


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Write each token's K and V to its slot.

    Args:
        key, value: `[num_tokens, num_kv_heads, head_size]` in the caches' dtype, any strides but for
            the last axis.
        key_cache, value_cache: `[num_blocks, block_size, num_kv_heads, head_size]`; written in place.
        slot_mapping: int64 `[num_tokens]`, `block_id * block_size + offset`, no slot twice; or -1: nothing is
            written. A slot past the cache's end is not noticed.

    Raises ValueError naming the shape or dtype that does not fit.
    """
    num_tokens, num_kv_heads, head_size = key.shape
    if value.shape != key.shape or key_cache.shape != value_cache.shape:
        raise ValueError(
            f"key and value have one shape, and so have the caches, got {[*key.shape]}, "
            f"{[*value.shape]}, {[*key_cache.shape]}, {[*value_cache.shape]}"
        )
    if key_cache.ndim != 4 or key_cache.shape[2:] != key.shape[1:]:
        raise ValueError(
            f"a cache for keys of {[*key.shape]} is [num_blocks, block_size, {num_kv_heads}, "
            f"{head_size}], got {[*key_cache.shape]}"
        )
    if len({key.dtype, value.dtype, key_cache.dtype, value_cache.dtype}) > 1:
        raise ValueError(
            f"keys, values and caches have one dtype, got {key.dtype}, {value.dtype}, "
            f"{key_cache.dtype}, {value_cache.dtype}"
        )
    if slot_mapping.shape != (num_tokens,):
        raise ValueError(f"slot_mapping is [{num_tokens}], got {[*slot_mapping.shape]}")
    heads_padded = triton.next_power_of_2(num_kv_heads)
    head_padded = triton.next_power_of_2(head_size)
    tokens = max(1, TILE_BYTES // (heads_padded * head_padded * key.element_size()))
    copy_to_slot[triton.cdiv(num_tokens, tokens),](
        key, value, key_cache, value_cache, slot_mapping,
        *key.stride()[:2], *value.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3],
        num_tokens,
        BLOCK_SIZE=key_cache.shape[1], TOKENS=tokens,
        NUM_KV_HEADS=num_kv_heads, HEADS_PADDED=heads_padded,
        HEAD_SIZE=head_size, HEAD_PADDED=head_padded,
    )  # fmt: skip
