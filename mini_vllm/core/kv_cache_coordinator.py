"""Several KV cache groups, asked at once: what all of them can reuse, and what they need together.

Mirrors `vllm/v1/core/kv_cache_coordinator.py`. A request's next token goes through all layers, so what one
group has computed serves only where every other group has it too.

Blocks of all groups take the same memory. Where the layers of one group keep less for a token than those of
another, its blocks hold more tokens instead. No model here has such layers: the engine plans for them, and
has none to run. Chunked local attention beside such groups is refused with prefix caching on, as in vLLM.

With an EAGLE head every group gives up the last block that it hits, as `KVCacheManager` says; vLLM marks
single groups as EAGLE's for one family of models only.

Left out: Mamba, context parallelism.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
)
from mini_vllm.core.kv_cache_utils import BlockHash, BlockHashListWithBlockSize, KVCacheBlock
from mini_vllm.core.request import Request
from mini_vllm.core.single_type_kv_cache_manager import (
    Hits,
    SingleTypeKVCacheManager,
    get_manager_for_kv_cache_spec,
)


class KVCacheCoordinator(ABC):
    """One manager for each group, over one pool.

    Args:
        kv_cache_config: the groups.
        max_model_len: no request has more tokens than this.
        max_num_batched_tokens: the token budget of a step: what a window can be ahead of.
        block_pool: the pool of all groups.
        use_eagle: an EAGLE head drafts.

    Attributes:
        block_size: tokens in the blocks that requests are hashed in: the greatest common divisor of the sizes
            (`vllm/v1/core/kv_cache_utils.py:571 resolve_kv_cache_block_sizes`).
        lcm_block_size: every multiple of it ends a block in each group.

    Source: `vllm/v1/core/kv_cache_coordinator.py:28 KVCacheCoordinator`.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        max_num_batched_tokens: int,
        block_pool: BlockPool,
        use_eagle: bool = False,
    ) -> None:
        self.kv_cache_config = kv_cache_config
        self.block_pool = block_pool
        self.use_eagle = use_eagle
        kv_specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        self.block_size = math.gcd(*(kv_spec.block_size for kv_spec in kv_specs))
        self.lcm_block_size = math.lcm(*(kv_spec.block_size for kv_spec in kv_specs))
        self.single_type_managers: tuple[SingleTypeKVCacheManager, ...] = tuple(
            get_manager_for_kv_cache_spec(
                kv_spec, max_num_batched_tokens, max_model_len, block_pool, group_id
            )
            for group_id, kv_spec in enumerate(kv_specs)
        )

    @abstractmethod
    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[Hits, int]:
        """The longest prefix that every group has: a run of blocks for each, and its length in tokens."""

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[Sequence[KVCacheBlock]],
        total_computed_tokens: int,
        apply_admission_cap: bool = False,
    ) -> int:
        return sum(
            manager.get_num_blocks_to_allocate(
                request_id, num_tokens, hits, total_computed_tokens, apply_admission_cap
            )
            for manager, hits in zip(self.single_type_managers, new_computed_blocks, strict=True)
        )

    def allocate_new_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[Sequence[KVCacheBlock]],
        num_computed_tokens: int,
    ) -> None:
        for manager, hits in zip(self.single_type_managers, new_computed_blocks, strict=True):
            manager.allocate_new_computed_blocks(request_id, hits, num_computed_tokens)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> Hits:
        return tuple(
            m.allocate_new_blocks(request_id, num_tokens) for m in self.single_type_managers
        )

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        for manager in self.single_type_managers:
            manager.cache_blocks(request, num_computed_tokens)

    def free(self, request_id: str) -> None:
        """Group by group, so the blocks of the first are evicted first."""
        for manager in self.single_type_managers:
            manager.free(request_id)

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        for manager in self.single_type_managers:
            manager.remove_skipped_blocks(request_id, total_computed_tokens)

    def get_blocks(self, request_id: str) -> Hits:
        return tuple(m.req_to_blocks.get(request_id) or [] for m in self.single_type_managers)


class KVCacheCoordinatorNoPrefixCache(KVCacheCoordinator):
    """Without prefix caching nothing is found
    (`vllm/v1/core/kv_cache_coordinator.py:276 KVCacheCoordinatorNoPrefixCache`)."""

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[Hits, int]:
        return tuple([] for _ in self.single_type_managers), 0

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Nothing."""


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group: what it finds is found
    (`vllm/v1/core/kv_cache_coordinator.py:324 UnitaryKVCacheCoordinator`)."""

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[Hits, int]:
        (manager,) = self.single_type_managers
        hits = manager.find_longest_cache_hit(
            block_hashes,
            max_cache_hit_length,
            [0],
            self.block_pool,
            manager.kv_cache_spec,
            self.block_size,
            self.use_eagle,
        )
        return hits, len(hits[0]) * self.block_size


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Groups of more than one kind
    (`vllm/v1/core/kv_cache_coordinator.py:392 HybridKVCacheCoordinator`)."""

    # From 0.32 on the block that EAGLE costs may reach to the last token (`sched/releases.py`).
    looks_past_the_last_token = False

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        max_num_batched_tokens: int,
        block_pool: BlockPool,
        use_eagle: bool = False,
    ) -> None:
        super().__init__(
            kv_cache_config, max_model_len, max_num_batched_tokens, block_pool, use_eagle
        )
        kv_specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        for kv_spec in kv_specs:
            if (
                isinstance(kv_spec, ChunkedLocalAttentionSpec)
                and kv_spec.block_size != self.lcm_block_size
            ):
                raise ValueError(
                    "with prefix caching, groups whose blocks differ in size cannot stand beside chunked "
                    f"local attention: {[kv_spec.block_size for kv_spec in kv_specs]}"
                )
        ids_of: dict[KVCacheSpec, list[int]] = {}
        for group_id, group in enumerate(kv_cache_config.kv_cache_groups):
            ids_of.setdefault(group.kv_cache_spec, []).append(group_id)
        # Full attention first: it stops at its first miss, and what it finds bounds the others.
        self.attention_groups = sorted(
            ids_of.items(), key=lambda item: not isinstance(item[0], FullAttentionSpec)
        )

    def hashes_for(
        self, kv_spec: KVCacheSpec, block_hashes: Sequence[BlockHash]
    ) -> Sequence[BlockHash]:
        """A request's hashes, of blocks as large as those of this kind."""
        if kv_spec.block_size == self.block_size:
            return block_hashes
        return BlockHashListWithBlockSize(block_hashes, kv_spec.block_size // self.block_size)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Not beyond the last place where a hit can end.

        Source: `vllm/v1/core/kv_cache_coordinator.py:487 HybridKVCacheCoordinator.cache_blocks`.
        """
        num_tokens = num_computed_tokens // self.lcm_block_size * self.lcm_block_size
        for manager in self.single_type_managers:
            block_hashes = self.hashes_for(manager.kv_cache_spec, request.block_hashes)
            manager.cache_blocks(request, num_tokens, block_hashes, self.lcm_block_size)

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[Hits, int]:
        """Ask each kind in turn for the longest hit within what the one before has found, until all agree.

        A shorter prefix of a hit is a hit of full attention too, but not of a window: that must be looked
        for anew. The length only falls, so it ends.
        Source: `vllm/v1/core/kv_cache_coordinator.py:503 HybridKVCacheCoordinator.find_longest_cache_hit`.
        """
        hits: list[list[KVCacheBlock]] = [[] for _ in self.single_type_managers]
        asked: set[KVCacheSpec] = set()
        gave_up: set[KVCacheSpec] = set()  # the block that EAGLE costs, at this length
        hit_length = end = max_cache_hit_length
        if self.looks_past_the_last_token:
            end = len(block_hashes) * self.block_size
        # Full attention and one other kind: what the second finds, the first has.
        once = len(self.attention_groups) == 2 and isinstance(
            self.attention_groups[0][0], FullAttentionSpec
        )
        while True:
            length = hit_length
            for kv_spec, group_ids in self.attention_groups:
                if kv_spec in asked and isinstance(kv_spec, FullAttentionSpec):
                    length = length // kv_spec.block_size * kv_spec.block_size
                    continue
                asked.add(kv_spec)
                find = self.single_type_managers[group_ids[0]].find_longest_cache_hit
                hashes = self.hashes_for(kv_spec, block_hashes)
                give_up = self.use_eagle and kv_spec not in gave_up
                most = length
                if give_up:  # one block more, which then goes
                    most = min(length + kv_spec.block_size, end)
                found = find(
                    hashes, most, group_ids, self.block_pool, kv_spec, self.lcm_block_size, give_up
                )
                for group_id, blocks in zip(group_ids, found, strict=True):
                    hits[group_id] = blocks
                new_length = len(found[0]) * kv_spec.block_size
                if give_up:
                    gave_up.add(kv_spec)
                elif new_length < length:
                    gave_up.clear()
                length = new_length
            if length >= hit_length:
                break
            hit_length = length
            if once:
                break
        kv_spec, group_ids = self.attention_groups[0]
        if isinstance(kv_spec, FullAttentionSpec):
            for group_id in group_ids:
                del hits[group_id][hit_length // kv_spec.block_size :]
        return tuple(hits), hit_length


def get_kv_cache_coordinator(
    kv_cache_config: KVCacheConfig,
    max_model_len: int,
    max_num_batched_tokens: int,
    enable_caching: bool,
    block_pool: BlockPool,
    use_eagle: bool = False,
) -> KVCacheCoordinator:
    """The coordinator for these groups
    (`vllm/v1/core/kv_cache_coordinator.py:610 get_kv_cache_coordinator`)."""
    kind: type[KVCacheCoordinator]
    kv_specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    chunked = any(isinstance(kv_spec, ChunkedLocalAttentionSpec) for kv_spec in kv_specs)
    if use_eagle and enable_caching and chunked:
        raise ValueError(
            "with prefix caching, an EAGLE head cannot draft for chunked local attention: a hit's last "
            "block would have to be given up, and chunks that are over have none"
        )
    if not enable_caching:
        kind = KVCacheCoordinatorNoPrefixCache
    elif len(kv_cache_config.kv_cache_groups) == 1:
        kind = UnitaryKVCacheCoordinator
    else:
        kind = HybridKVCacheCoordinator
    return kind(kv_cache_config, max_model_len, max_num_batched_tokens, block_pool, use_eagle)
