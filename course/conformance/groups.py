"""vLLM's signatures over what layers keep, and over the managers of one kind of attention; see `core`."""

from __future__ import annotations

from typing import Any

import vllm.v1.kv_cache_interface as v_interface

import mini_vllm.core.kv_cache_interface as m_interface
import mini_vllm.core.single_type_kv_cache_manager as m_single
from course.conformance.missing import Missing, refuse


def kv_cache_spec(theirs: Any) -> m_interface.KVCacheSpec:
    """The engine's spec for a layer; `Missing` for a kind that it has not."""
    kind = type(theirs)
    refuse(
        Mamba=isinstance(theirs, v_interface.MambaSpec),
        encoder__decoder=isinstance(theirs, v_interface.CrossAttentionSpec),
    )
    sizes = theirs.block_size, theirs.num_kv_heads, theirs.head_size
    if kind is v_interface.SlidingWindowSpec:
        return m_interface.SlidingWindowSpec(*sizes, sliding_window=theirs.sliding_window)
    if kind is v_interface.ChunkedLocalAttentionSpec:
        chunk_size = theirs.attention_chunk_size
        return m_interface.ChunkedLocalAttentionSpec(*sizes, attention_chunk_size=chunk_size)
    if (
        kind is not v_interface.FullAttentionSpec
        or theirs.sliding_window
        or theirs.attention_chunk_size
    ):
        raise Missing(kind.__name__)
    return m_interface.FullAttentionSpec(*sizes)


def kv_cache_config(theirs: Any) -> m_interface.KVCacheConfig:
    """The engine's groups; `Missing` where one is of another kind."""
    groups = [
        m_interface.KVCacheGroupSpec(group.layer_names, kv_cache_spec(group.kv_cache_spec))
        for group in theirs.kv_cache_groups
    ]
    return m_interface.KVCacheConfig(theirs.num_blocks, groups)


class _SingleTypeManager(m_single.SingleTypeKVCacheManager):
    """vLLM's arguments before those of a manager of one kind of attention."""

    def __init__(
        self,
        kv_cache_spec: Any,
        block_pool: Any,
        enable_caching: bool,
        kv_cache_group_id: int,
        dcp_world_size: int = 1,
        pcp_world_size: int = 1,
        max_admission_blocks_per_request: int | None = None,
    ) -> None:
        refuse(context_parallelism=dcp_world_size > 1 or pcp_world_size > 1)
        cap = max_admission_blocks_per_request
        super().__init__(_spec(kv_cache_spec), block_pool, kv_cache_group_id, cap)

    @classmethod
    def find_longest_cache_hit(  # type: ignore[override]
        cls,
        block_hashes: Any,
        max_length: int,
        kv_cache_group_ids: Any,
        block_pool: Any,
        kv_cache_spec: Any,
        use_eagle: bool = False,
        alignment_tokens: int | None = None,
        **rest: Any,
    ) -> Any:
        spec = _spec(kv_cache_spec)
        refuse(speculative_decoding=use_eagle)
        find: Any = super().find_longest_cache_hit
        return find(
            block_hashes, max_length, kv_cache_group_ids, block_pool, spec, alignment_tokens or 1
        )

    def get_num_blocks_to_allocate(  # type: ignore[override]
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Any,
        total_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
    ) -> int:
        refuse(speculative_decoding=num_tokens_main_model != num_tokens)
        return super().get_num_blocks_to_allocate(
            request_id, num_tokens, new_computed_blocks, total_computed_tokens, apply_admission_cap
        )

    def allocate_new_computed_blocks(  # type: ignore[override]
        self,
        request_id: str,
        new_computed_blocks: Any,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
    ) -> None:
        refuse(KV_connector=num_external_computed_tokens)
        super().allocate_new_computed_blocks(
            request_id, new_computed_blocks, num_local_computed_tokens
        )

    def allocate_new_blocks(  # type: ignore[override]
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> Any:
        refuse(speculative_decoding=num_tokens_main_model != num_tokens)
        return super().allocate_new_blocks(request_id, num_tokens)


_spec = kv_cache_spec  # where an argument has its name


class SlidingWindowManager(_SingleTypeManager, m_single.SlidingWindowManager):  # type: ignore[misc]
    """`mini_vllm`'s manager of layers with a window."""


class ChunkedLocalAttentionManager(  # type: ignore[misc]
    _SingleTypeManager, m_single.ChunkedLocalAttentionManager
):
    """`mini_vllm`'s manager of layers with chunks."""
