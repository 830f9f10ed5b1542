"""Lab 02-09: two kinds of layers. A solution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_coordinator import KVCacheCoordinator
from mini_vllm.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from mini_vllm.core.kv_cache_utils import BlockHash, KVCacheBlock
from mini_vllm.core.single_type_kv_cache_manager import Hits, SingleTypeKVCacheManager
from mini_vllm.utils.math import cdiv


def predictions() -> dict[str, list[int] | int]:
    """Answers about the scene of the starter's docstring."""
    return {
        "window table after step 3": [0, 0, 7, 8, 11, 12],
        "window table after step 4": [0, 0, 0, 0, 11, 12, 14],
        "free queue after step 4": [15, 4, 3, 8, 7],
        "blocks of the stranger": [15, 4, 3, 8],
        "found with 12 tokens in common": 0,
        "found with 20 tokens in common": 0,
        "found with 24 tokens in common": 24,
        "found by ada herself": 24,
    }


class SlidingWindowManager(SingleTypeKVCacheManager):
    """The tables of a group of layers that see the last `sliding_window` tokens, the newest among them.

    Source: `vllm/v1/core/single_type_kv_cache_manager.py:542 SlidingWindowManager`.
    """

    def __init__(self, kv_cache_spec: SlidingWindowSpec, *args: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, *args, **kwargs)
        self.sliding_window = kv_cache_spec.sliding_window

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many tokens at the front neither the next token sees nor any after it."""
        return max(0, num_computed_tokens - self.sliding_window + 1)

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Give back the blocks out of the window; the null block takes their places."""
        blocks = self.req_to_blocks.get(request_id, [])
        num_skipped = self.get_num_skipped_tokens(total_computed_tokens) // self.block_size
        removed: list[KVCacheBlock] = []
        for i in range(min(num_skipped, len(blocks)) - 1, -1, -1):
            if blocks[i].is_null:
                break
            removed.append(blocks[i])
            blocks[i] = self.block_pool.null_block
        self.block_pool.free_blocks(removed)

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: SlidingWindowSpec,
    ) -> Hits:
        """The longest prefix after which the next token finds all that its window shows."""
        num_needed = max(1, cdiv(kv_cache_spec.sliding_window - 1, kv_cache_spec.block_size))
        num_blocks = max_length // kv_cache_spec.block_size
        runs: Hits = tuple([block_pool.null_block] * num_blocks for _ in kv_cache_group_ids)
        in_a_row = 0
        for i in range(num_blocks - 1, -1, -1):
            found = block_pool.get_cached_blocks(block_hashes[i], kv_cache_group_ids)
            if found is None:
                in_a_row = 0
                continue
            for run, block in zip(runs, found, strict=True):
                run[i] = block
            in_a_row += 1
            if in_a_row == num_needed:
                for run in runs:
                    del run[i + in_a_row :]
                return runs
        for run in runs:
            del run[in_a_row:]
        return runs


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Groups of several kinds over one pool.

    Source: `vllm/v1/core/kv_cache_coordinator.py:392 HybridKVCacheCoordinator`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ids_of: dict[KVCacheSpec, list[int]] = {}
        for group_id, group in enumerate(self.kv_cache_config.kv_cache_groups):
            ids_of.setdefault(group.kv_cache_spec, []).append(group_id)
        self.attention_groups = sorted(
            ids_of.items(), key=lambda item: not isinstance(item[0], FullAttentionSpec)
        )

    def find_of_kind(
        self, spec: KVCacheSpec, block_hashes: Sequence[BlockHash], max_length: int
    ) -> Hits:
        """Given: what the groups with this spec find within `max_length` tokens."""
        group_ids = dict(self.attention_groups)[spec]
        find = self.single_type_managers[group_ids[0]].find_longest_cache_hit
        return find(block_hashes, max_length, group_ids, self.block_pool, spec)

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[Hits, int]:
        """The longest prefix that the groups of all kinds can reuse."""
        hits: list[list[KVCacheBlock]] = [[] for _ in self.single_type_managers]
        hit_length = max_cache_hit_length
        while True:
            length = hit_length
            for spec, group_ids in self.attention_groups:
                found = self.find_of_kind(spec, block_hashes, length)
                for group_id, blocks in zip(group_ids, found, strict=True):
                    hits[group_id] = blocks
                length = len(found[0]) * self.block_size
            if length == hit_length:
                return tuple(hits), hit_length
            hit_length = length
