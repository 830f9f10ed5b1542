"""`KVCacheManager` for a model that has a window, or several KV cache groups.

Upstream there is one manager (`vllm/v1/core/kv_cache_manager.py:110 KVCacheManager`), which always keeps a
tuple of tables, one a group. Here most models have one group of full attention, whose manager keeps one
table and needs no coordinator. This one has the same methods; where the other's `KVCacheBlocks.blocks` is
a run of blocks, it is a tuple of runs here.

Of the invariants of `block_pool.py`, I2 holds with an addition: an entry may be exchanged once, for the null
block, when the window has passed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_coordinator import get_kv_cache_coordinator
from mini_vllm.core.kv_cache_interface import KVCacheConfig
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.core.kv_cache_utils import KVCacheBlock, get_group_id
from mini_vllm.core.request import Request
from mini_vllm.core.stats import PrefixCacheStats
from mini_vllm.utils.math import cdiv


class HybridKVCacheBlocks(KVCacheBlocks):
    """A run of blocks for each group (`vllm/v1/core/kv_cache_manager.py:26 KVCacheBlocks`).

    `blocks` is empty where no group has any.
    """

    def __init__(self, runs: Sequence[Sequence[KVCacheBlock]]) -> None:
        self.num_groups = len(runs)
        self.blocks: Any = tuple(runs) if any(runs) else ()

    @property
    def groups(self) -> Sequence[Sequence[KVCacheBlock]]:
        return self.blocks or [()] * self.num_groups

    def get_block_ids(self) -> tuple[list[int], ...]:
        return tuple([block.block_id for block in run] for run in self.groups)


class HybridKVCacheManager(KVCacheManager):
    """Allocates the slots that a step's tokens need, in every group.

    Args:
        kv_cache_config: the pool and the groups.
        max_model_len: no request is ever given slots beyond this many tokens.
        max_num_batched_tokens: the token budget of a step; None: no less than `max_model_len`.
        enable_caching: prefix caching.
        block_pool: the pool to use; None: a new one.
        use_eagle: as `KVCacheManager`'s, in every group.

    Source: `vllm/v1/core/kv_cache_manager.py:110 KVCacheManager`.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        max_num_batched_tokens: int | None = None,
        enable_caching: bool = True,
        block_pool: BlockPool | None = None,
        use_eagle: bool = False,
    ) -> None:
        self.kv_cache_config = kv_cache_config
        self.max_model_len = max_model_len
        self.max_num_batched_tokens = max_num_batched_tokens or max_model_len
        self.enable_caching = enable_caching
        self.block_pool = block_pool or BlockPool(kv_cache_config.num_blocks, enable_caching)
        self.coordinator = get_kv_cache_coordinator(
            kv_cache_config,
            max_model_len,
            self.max_num_batched_tokens,
            enable_caching,
            self.block_pool,
            use_eagle,
        )
        self.block_size = self.coordinator.block_size
        self._no_blocks: tuple[Sequence[KVCacheBlock], ...] = tuple(
            () for _ in self.coordinator.single_type_managers
        )
        self.empty_kv_cache_blocks = HybridKVCacheBlocks(self._no_blocks)
        self.prefix_cache_stats = PrefixCacheStats()

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """As `KVCacheManager.get_computed_blocks`: the longest prefix that all groups can reuse."""
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0
        hits, num_computed_tokens = self.coordinator.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1
        )
        self.prefix_cache_stats.record(
            request.num_tokens, num_computed_tokens, request.num_preemptions > 0
        )
        return HybridKVCacheBlocks(hits), num_computed_tokens

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        full_sequence_must_fit: bool = False,
        num_lookahead_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        """As `KVCacheManager.allocate_slots`, with one step more, before the second question whether it
        fits: blocks that have fallen out of the window are given back. That stays so if the answer is None.

        Source: `vllm/v1/core/kv_cache_manager.py:236 KVCacheManager.allocate_slots`.
        """
        if num_new_tokens <= 0:
            raise ValueError(f"num_new_tokens must be greater than 0, got {num_new_tokens}")
        request_id, coordinator = request.request_id, self.coordinator
        hits: Any = new_computed_blocks.blocks if new_computed_blocks is not None else ()
        runs = hits or self._no_blocks
        num_computed_tokens = request.num_computed_tokens + num_new_computed_tokens
        total_computed_tokens = min(num_computed_tokens, self.max_model_len)
        if full_sequence_must_fit:
            need = coordinator.get_num_blocks_to_allocate(
                request_id,
                min(request.num_tokens, self.max_model_len),
                runs,
                total_computed_tokens,
                apply_admission_cap=True,
            )
            if need > self.block_pool.get_num_free_blocks():
                return None
        num_tokens_after_step = total_computed_tokens + num_new_tokens
        num_tokens_need_slot = min(num_tokens_after_step + num_lookahead_tokens, self.max_model_len)
        coordinator.remove_skipped_blocks(request_id, total_computed_tokens)
        need = coordinator.get_num_blocks_to_allocate(
            request_id, num_tokens_need_slot, runs, num_computed_tokens
        )
        if need > self.block_pool.get_num_free_blocks():
            return None
        if hits:
            coordinator.allocate_new_computed_blocks(request_id, runs, num_computed_tokens)
        new_blocks = coordinator.allocate_new_blocks(request_id, num_tokens_need_slot)
        if self.enable_caching:
            coordinator.cache_blocks(request, min(num_tokens_after_step, request.num_tokens))
        return HybridKVCacheBlocks(new_blocks)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        self.coordinator.cache_blocks(request, num_computed_tokens)

    def free(self, request: Request) -> None:
        self.coordinator.free(request.request_id)

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        return HybridKVCacheBlocks(self.coordinator.get_blocks(request_id))

    @property
    def kv_cache_event_metadata(self) -> tuple[tuple[str, int | None], ...]:
        kv_specs = [group.kv_cache_spec for group in self.kv_cache_config.kv_cache_groups]
        return tuple(
            (kv_spec.kind, getattr(kv_spec, "sliding_window", None)) for kv_spec in kv_specs
        )

    def max_blocks_needed(
        self, request: Request, num_draft_slots: int = 0, num_lookahead_tokens: int = 0
    ) -> int:
        """The most blocks this request can come to hold, over all groups."""
        num_tokens = self._max_slots_needed(request, num_draft_slots, num_lookahead_tokens)
        need = 0
        for manager in self.coordinator.single_type_managers:
            num_blocks = cdiv(num_tokens, manager.block_size)
            cap = manager.max_admission_blocks_per_request
            if cap is not None:
                num_blocks = min(num_blocks, cap + cdiv(num_lookahead_tokens, manager.block_size))
            need += num_blocks
        return need

    def check_invariants(self) -> None:
        """Assert I1 to I4 over pool and tables. O(blocks): for tests, not for the step."""
        self.block_pool.check_invariants()
        references: dict[int, int] = {}
        group_of: dict[int, int] = {}
        alignment = self.coordinator.lcm_block_size
        for manager in self.coordinator.single_type_managers:
            group_id = manager.kv_cache_group_id
            for request_id, blocks in manager.req_to_blocks.items():
                held = [block for block in blocks if not block.is_null]
                ids = [block.block_id for block in held]
                assert len(set(ids)) == len(ids), f"{request_id} holds a block twice: {ids}"
                num_null = len(blocks) - len(held)
                assert held == blocks[num_null:], f"{request_id}: null blocks only at the front"
                num_cached = manager.num_cached_block.get(request_id, 0)
                for position, block in enumerate(blocks):
                    if block.is_null:
                        continue
                    references[block.block_id] = references.get(block.block_id, 0) + 1
                    one = group_of.setdefault(block.block_id, group_id)
                    assert one == group_id, f"two groups hold {block}"
                    if block.ref_cnt > 1:
                        assert position < num_cached, f"I3: shared but not published: {block}"
                    if position < num_cached and manager.serves_hits(position, alignment):
                        assert block.block_hash is not None, f"I3: published unhashed: {block}"
                        assert get_group_id(block.block_hash) == group_id, (
                            f"another's hash: {block}"
                        )
                    else:
                        assert block.block_hash is None, f"I3: hashed but not full: {block}"
        for block in self.block_pool.blocks[1:]:
            count = references.get(block.block_id, 0)
            assert block.ref_cnt == count, f"leak: {block} is held by {count} tables"
