"""What the layers of a model keep in the KV cache: a spec for each kind of layer, groups of layers, the pool.

Mirrors `vllm/v1/kv_cache_interface.py`. A **KV cache group** is layers that share a block table, because
they keep the same tokens: those with full attention all of them, those with a window only the last ones.

Left out: MLA, Mamba, cross attention, caches in 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mini_vllm.utils.math import cdiv


@dataclass(frozen=True)
class KVCacheSpec:
    """What one layer keeps, in float32 (`vllm/v1/kv_cache_interface.py:95 KVCacheSpec`).

    Attributes:
        block_size: tokens in a block.
    """

    kind: ClassVar[str] = "unknown"
    """vLLM's name of it (`vllm/v1/kv_cache_interface.py:81 KVCacheSpecKind`)."""

    block_size: int
    num_kv_heads: int = 1
    head_size: int = 1

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block in one layer."""
        return 2 * self.block_size * self.num_kv_heads * self.head_size * 4

    def max_admission_blocks_per_request(
        self, max_num_batched_tokens: int, max_model_len: int
    ) -> int:
        """The most blocks of this kind that a request can hold at any one time."""
        return cdiv(max_model_len, self.block_size)


@dataclass(frozen=True)
class FullAttentionSpec(KVCacheSpec):
    """Every token stays (`vllm/v1/kv_cache_interface.py:188 FullAttentionSpec`)."""

    kind = "full_attention"


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(KVCacheSpec):
    """A token attends to the last `sliding_window`, itself among them
    (`vllm/v1/kv_cache_interface.py:435 SlidingWindowSpec`)."""

    kind = "sliding_window"
    sliding_window: int

    def max_admission_blocks_per_request(
        self, max_num_batched_tokens: int, max_model_len: int
    ) -> int:
        """A step's tokens, the window before the first of them, and one more where neither begins with a
        block (`vllm/v1/kv_cache_interface.py:463 SlidingWindowSpec.max_admission_blocks_per_request`)."""
        num_tokens = min(self.sliding_window - 1 + max_num_batched_tokens, max_model_len)
        return cdiv(num_tokens, self.block_size) + 1


@dataclass(frozen=True, kw_only=True)
class ChunkedLocalAttentionSpec(KVCacheSpec):
    """The sequence is cut into chunks, and a token attends to its own chunk's beginning
    (`vllm/v1/kv_cache_interface.py:407 ChunkedLocalAttentionSpec`). No model here has such layers."""

    kind = "chunked_local_attention"
    attention_chunk_size: int

    def max_admission_blocks_per_request(
        self, max_num_batched_tokens: int, max_model_len: int
    ) -> int:
        num_tokens = min(self.attention_chunk_size + max_num_batched_tokens, max_model_len)
        return cdiv(num_tokens, self.block_size)


@dataclass
class KVCacheGroupSpec:
    """Layers that share a block table (`vllm/v1/kv_cache_interface.py:823 KVCacheGroupSpec`).

    Attributes:
        layer_names: as `get_kv_cache_specs` names them.
        kv_cache_spec: what each of them keeps.
    """

    layer_names: list[str]
    kv_cache_spec: KVCacheSpec


@dataclass
class KVCacheConfig:
    """The pool and what uses it (`vllm/v1/kv_cache_interface.py:838 KVCacheConfig`).

    Attributes:
        num_blocks: blocks in the pool, the null block included. All groups take from it.
        kv_cache_groups: at least one.
    """

    num_blocks: int
    kv_cache_groups: list[KVCacheGroupSpec]

    @property
    def group_size(self) -> int:
        """Layers in the largest group. There are as many arrays of blocks, and each serves one layer of every
        group: two groups never hold the same block, so their layers never meet in it."""
        return max(len(group.layer_names) for group in self.kv_cache_groups)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool, in all the arrays."""
        return self.group_size * self.kv_cache_groups[0].kv_cache_spec.page_size_bytes

    @property
    def is_plain(self) -> bool:
        """One group of full attention: `KVCacheManager` serves that, and knows nothing of groups."""
        specs = [group.kv_cache_spec for group in self.kv_cache_groups]
        return len(specs) == 1 and isinstance(specs[0], FullAttentionSpec)
