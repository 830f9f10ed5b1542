"""Slots for requests: which blocks each holds, what it can reuse, whether it fits.

Mirrors three layers of vLLM at once, because one group of full attention needs no more than one:
`KVCacheManager` (`vllm/v1/core/kv_cache_manager.py`), `UnitaryKVCacheCoordinator`
(`kv_cache_coordinator.py`) and `FullAttentionManager`
(`vllm/v1/core/single_type_kv_cache_manager.py:481 FullAttentionManager`).

Several KV cache groups, and windows, which free blocks early, are in `hybrid_kv_cache_manager.py`.
Left out: tokens loaded by a KV connector, encoder tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_interface import FullAttentionSpec
from mini_vllm.core.kv_cache_utils import KVCacheBlock
from mini_vllm.core.request import Request
from mini_vllm.core.stats import PrefixCacheStats
from mini_vllm.utils.math import cdiv

if TYPE_CHECKING:
    from mini_vllm.distributed.kv_events import KVCacheEvent

logger = logging.getLogger(__name__)


class KVCacheBlocks:
    """What the manager hands to the scheduler: a run of blocks, without the pool's internals.

    Source: `vllm/v1/core/kv_cache_manager.py:26 KVCacheBlocks` (there `blocks` is a tuple of runs, one
    a KV cache group).
    """

    __slots__ = ("blocks",)

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.blocks = blocks

    @property
    def groups(self) -> Sequence[Sequence[KVCacheBlock]]:
        """The runs, one a KV cache group: here one."""
        return (self.blocks,)

    def get_block_ids(self) -> tuple[list[int], ...]:
        """The blocks' numbers, a list for each KV cache group: here one."""
        return ([block.block_id for block in self.blocks],)

    def __repr__(self) -> str:
        return f"KVCacheBlocks({self.get_block_ids()})"


class KVCacheManager:
    """Allocates the slots that a step's tokens need, and finds prefixes that need none.

    Args:
        num_gpu_blocks: blocks in the pool, null block included (ignored if `block_pool` is given).
        block_size: tokens in a block.
        max_model_len: no request is ever given slots beyond this many tokens.
        enable_caching: prefix caching.
        block_pool: the pool to use, for instance a learner's own.
        use_eagle: an EAGLE head drafts. Its layer needs the hidden state before each token, and a prefix
            hit computes none, so a request gives up the last block that it hits and computes that again.

    Source: `vllm/v1/core/kv_cache_manager.py:110 KVCacheManager`.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int,
        max_model_len: int,
        enable_caching: bool = True,
        block_pool: BlockPool | None = None,
        use_eagle: bool = False,
    ) -> None:
        self.use_eagle = use_eagle
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.block_pool = block_pool or BlockPool(num_gpu_blocks, enable_caching)
        self.empty_kv_cache_blocks = KVCacheBlocks(())
        # request id -> its block table, in order. Absent: the request holds nothing.
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        # request id -> how many blocks at the front of its table are published.
        self.num_cached_block: dict[str, int] = {}
        self.prefix_cache_stats = PrefixCacheStats()

    @classmethod
    def from_config(cls, config: ResolvedConfig) -> Self:
        """The manager for these settings."""
        return cls(
            config.num_gpu_blocks,
            config.block_size,
            config.max_model_len,
            config.enable_prefix_caching,
            use_eagle=config.speculation is not None and config.speculation.use_eagle(),
        )

    @property
    def usage(self) -> float:
        """The share of usable blocks that are in use, 0.0 to 1.0."""
        return self.block_pool.get_usage()

    def make_prefix_cache_stats(self) -> PrefixCacheStats:
        """What was looked up since the last call
        (`vllm/v1/core/kv_cache_manager.py:182 KVCacheManager.make_prefix_cache_stats`)."""
        stats = self.prefix_cache_stats
        self.prefix_cache_stats = PrefixCacheStats()
        return stats

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """The longest cached prefix of the request: its blocks and its length in tokens.

        At least the last token must be computed anew, for its logits. Hits are whole blocks, so a
        prompt that is cached entirely and fills its blocks recomputes a whole block, not a token.

        Nothing is reserved here: the blocks found may still be evicted until `allocate_slots`
        touches them. Source:
        `vllm/v1/core/kv_cache_manager.py:194 KVCacheManager.get_computed_blocks`.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0
        max_cache_hit_length = request.num_tokens - 1
        hits: list[KVCacheBlock] = []
        get_cached_block = self.block_pool.get_cached_block
        for block_hash in request.block_hashes[: max_cache_hit_length // self.block_size]:
            block = get_cached_block(block_hash)
            if block is None:
                break  # hashes are chained: what follows a miss cannot be a hit
            hits.append(block)
        if self.use_eagle and hits:
            hits.pop()  # `vllm/v1/core/single_type_kv_cache_manager.py:519`
        num_computed_tokens = len(hits) * self.block_size
        self.prefix_cache_stats.record(
            request.num_tokens, num_computed_tokens, request.num_preemptions > 0
        )
        if not hits:
            return self.empty_kv_cache_blocks, 0
        return KVCacheBlocks(hits), num_computed_tokens

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        full_sequence_must_fit: bool = False,
        num_lookahead_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        """Give the request slots for its next `num_new_tokens` tokens; None if they do not fit.

        On None nothing has changed. The order of the steps is upstream's, because each can be seen
        in the block ids:

        1. With `full_sequence_must_fit` (admission), the whole sequence as it stands must fit, even
           if this step computes only a chunk of it.
        2. Hit blocks that are free count as needed: touching takes them out of the free queue.
        3. Touch the hits before taking new blocks, which could otherwise evict them.
        4. Take what is missing from the front of the free queue.
        5. Publish the blocks that this step fills (I5), now, so that a request admitted later in
           the same `schedule()` can share them. Drafts are not published: they may be wrong.

        Args:
            request: `num_computed_tokens` tells where its new tokens begin.
            num_new_tokens: at least 1.
            num_new_computed_tokens: tokens in `new_computed_blocks`, and after them those whose KV an
                admission rule supplies, which get new blocks.
            new_computed_blocks: prefix hits, for a request that holds nothing yet.
            num_lookahead_tokens: slots beyond those tokens, for a drafter that writes KV of its own.

        Returns: the newly taken blocks (hits not among them), possibly none.
        Raises ValueError if `num_new_tokens` is below 1.
        Source: `vllm/v1/core/kv_cache_manager.py:236 KVCacheManager.allocate_slots`.
        """
        if num_new_tokens <= 0:
            raise ValueError(f"num_new_tokens must be greater than 0, got {num_new_tokens}")
        request_id = request.request_id
        blocks = self.req_to_blocks.get(request_id, [])
        hits: Sequence[KVCacheBlock] = ()
        num_evictable_blocks = 0
        if new_computed_blocks is not None:
            hits = new_computed_blocks.blocks
            # Free hits leave the free queue when they are touched, so they count as taken from it.
            num_evictable_blocks = sum([block.ref_cnt == 0 for block in hits])
        num_blocks = len(blocks) + len(hits)
        if full_sequence_must_fit:
            full_num_tokens = min(request.num_tokens, self.max_model_len)
            need = cdiv(full_num_tokens, self.block_size) - num_blocks + num_evictable_blocks
            if need > self.block_pool.get_num_free_blocks():
                return None
        total_computed_tokens = request.num_computed_tokens + num_new_computed_tokens
        num_tokens_main_model = total_computed_tokens + num_new_tokens
        num_tokens_need_slot = num_tokens_main_model
        if num_lookahead_tokens:
            num_tokens_need_slot += num_lookahead_tokens
        if num_tokens_need_slot > self.max_model_len:
            num_tokens_need_slot = self.max_model_len
        num_new_blocks = cdiv(num_tokens_need_slot, self.block_size) - num_blocks
        need = num_new_blocks + num_evictable_blocks
        if need > 0 and need > self.block_pool.get_num_free_blocks():
            return None

        self.req_to_blocks[request_id] = blocks
        if hits:
            assert not blocks, "prefix hits are for a request that holds nothing"
            self.block_pool.touch(hits)
            blocks.extend(hits)
            self.num_cached_block[request_id] = len(hits)
        new_blocks = self.empty_kv_cache_blocks
        if num_new_blocks > 0:
            new_blocks = KVCacheBlocks(self.block_pool.get_new_blocks(num_new_blocks))
            blocks.extend(new_blocks.blocks)

        if self.enable_caching:
            num_full_blocks = num_tokens_main_model // self.block_size
            if num_full_blocks > self.num_cached_block.get(request_id, 0):
                num_tokens_to_cache = min(num_tokens_main_model, request.num_tokens)
                self.cache_blocks(request, num_tokens_to_cache)
        return new_blocks

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publish the request's full blocks among its first `num_computed_tokens` tokens.

        The tokens must be known: a block is published under the hash of what stands in it.
        Source: `vllm/v1/core/kv_cache_manager.py:544 KVCacheManager.cache_blocks`.
        """
        if not self.enable_caching:
            return
        num_full_blocks = min(num_computed_tokens, self.max_model_len) // self.block_size
        num_cached_blocks = self.num_cached_block.get(request.request_id, 0)
        if num_cached_blocks < num_full_blocks:
            blocks = self.req_to_blocks[request.request_id]
            self.block_pool.cache_full_blocks(request, blocks, num_cached_blocks, num_full_blocks)
            self.num_cached_block[request.request_id] = num_full_blocks

    def free(self, request: Request) -> None:
        """Give back all blocks of the request, the tail first.

        The tail goes to the free queue first, so it is evicted first: what is left of a prefix
        is its beginning, the part that another prompt can share.
        Source: `vllm/v1/core/single_type_kv_cache_manager.py:338 SingleTypeKVCacheManager.free`.
        """
        blocks = self.req_to_blocks.pop(request.request_id, None)
        self.num_cached_block.pop(request.request_id, None)
        if blocks:
            self.block_pool.free_blocks(reversed(blocks))

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """The request's whole block table."""
        return KVCacheBlocks(self.req_to_blocks.get(request_id, ()))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Its numbers, a list for each KV cache group; 0 stands for a block out of the window."""
        return self.get_blocks(request_id).get_block_ids()

    def max_blocks_needed(
        self, request: Request, num_draft_slots: int = 0, num_lookahead_tokens: int = 0
    ) -> int:
        """The most blocks this request can come to hold.

        It ends when it has `max_tokens` outputs or `max_model_len` tokens, and the last token
        sampled is never computed, so it needs no slot. Drafts may stand past that end, and their
        drafter's slots past them.
        """
        num_tokens = self._max_slots_needed(request, num_draft_slots, num_lookahead_tokens)
        return cdiv(num_tokens, self.block_size)

    def _max_slots_needed(
        self, request: Request, num_draft_slots: int, num_lookahead_tokens: int
    ) -> int:
        last = request.num_prompt_tokens + request.max_tokens + num_draft_slots
        last = min(last, self.max_model_len) - 1
        return min(max(last, request.num_prompt_tokens) + num_lookahead_tokens, self.max_model_len)

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Forget the hashes of these blocks
        (`vllm/v1/core/kv_cache_manager.py:452 KVCacheManager.evict_blocks`)."""
        self.block_pool.evict_blocks(block_ids)

    def take_events(self) -> list[KVCacheEvent]:
        """The pool's events since the last call, and with each run of stored blocks what their group is.

        Source: `vllm/v1/core/kv_cache_manager.py:510 KVCacheManager.take_events`.
        """
        from mini_vllm.distributed.kv_events import BlockStored

        events = self.block_pool.take_events()
        for event in events:
            if not isinstance(event, BlockStored) or event.group_idx is None:
                continue
            if not 0 <= event.group_idx < len(self.kv_cache_event_metadata):
                logger.warning("Group index `%s` not in KV cache metadata", event.group_idx)
                continue
            kind, window = self.kv_cache_event_metadata[event.group_idx]
            event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window = kind, window
        return events

    @property
    def kv_cache_event_metadata(self) -> tuple[tuple[str, int | None], ...]:
        """Kind and window of each group."""
        return ((FullAttentionSpec.kind, None),)

    def reset_prefix_cache(self) -> bool:
        if not self.block_pool.reset_prefix_cache():
            return False
        self.prefix_cache_stats.reset = True
        return True

    def check_invariants(self) -> None:
        """Assert I1 to I4 over pool and tables. O(blocks): for tests, not for the step."""
        self.block_pool.check_invariants()
        references: dict[int, int] = {}
        for request_id, blocks in self.req_to_blocks.items():
            ids = [block.block_id for block in blocks]
            assert len(set(ids)) == len(ids), f"{request_id} holds a block twice: {ids}"
            assert 0 not in ids, f"{request_id} holds the null block"
            num_cached = self.num_cached_block.get(request_id, 0)
            for position, block in enumerate(blocks):
                references[block.block_id] = references.get(block.block_id, 0) + 1
                if block.ref_cnt > 1:
                    assert position < num_cached, f"I3: shared but not full and published: {block}"
                if position < num_cached:
                    assert block.block_hash is not None, f"I3: published without a hash: {block}"
                else:
                    assert block.block_hash is None, f"I3: hashed but not full: {block}"
        for block in self.block_pool.blocks[1:]:
            held = references.get(block.block_id, 0)
            assert block.ref_cnt == held, f"leak: {block} is held by {held} tables"
