"""`BlockPool` that reports what enters and leaves its index of hashes.

Upstream asks at each of these places whether events are wanted
(`vllm/v1/core/block_pool.py:179 in BlockPool.__init__`). Here that is a class of its own, so that an engine
without events runs no line for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_utils import (
    BlockHash,
    BlockHashListWithBlockSize,
    KVCacheBlock,
    generate_block_hash_extra_keys,
    get_block_hash,
    get_group_id,
)
from mini_vllm.distributed.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
)

if TYPE_CHECKING:
    from mini_vllm.core.request import Request


def maybe_convert_block_hash(hash_bytes: BlockHash) -> int:
    """The hash's last 8 bytes as a number, as vLLM sends it unless told to send all bytes
    (`vllm/v1/core/kv_cache_utils.py:77 maybe_convert_block_hash`)."""
    return int.from_bytes(hash_bytes[-8:], "big")


class EventBlockPool(BlockPool):
    """As `BlockPool`; `take_events` gives what has happened since the last call, oldest first.

    Args:
        block_size: tokens in a block, which the events name; where groups have blocks of different sizes, in
            those that requests are hashed in.
    """

    def __init__(
        self, num_gpu_blocks: int, enable_caching: bool = True, block_size: int = 16
    ) -> None:
        super().__init__(num_gpu_blocks, enable_caching)
        self.block_size = block_size
        self.kv_event_queue: list[KVCacheEvent] = []
        self._keys_have_groups = False  # a manager publishes with groups, or without them

    def cache_full_blocks(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
    ) -> None:
        super().cache_full_blocks(request, blocks, num_cached_blocks, num_full_blocks)
        hashes = request.block_hashes
        stored = [i for i in range(num_cached_blocks, num_full_blocks) if not blocks[i].is_null]
        self._report_stored(request, hashes, num_cached_blocks, num_full_blocks, stored, 0)

    def cache_full_blocks_of_group(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        kv_cache_group_id: int,
        block_hashes: Sequence[BlockHash],
        block_mask: Sequence[bool] | None = None,
    ) -> None:
        self._keys_have_groups = True
        first, end, group_id = num_cached_blocks, num_full_blocks, kv_cache_group_id
        super().cache_full_blocks_of_group(
            request, blocks, first, end, group_id, block_hashes, block_mask
        )
        stored = [i for i in range(first, end) if not blocks[i].is_null]
        if block_mask:
            stored = [i for i in stored if block_mask[i - first]]
        self._report_stored(request, block_hashes, first, end, stored, group_id)

    def _report_stored(
        self,
        request: Request,
        hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
        stored: Sequence[int],
        kv_cache_group_id: int,
    ) -> None:
        """One event for the run, whatever its length
        (`vllm/v1/core/block_pool.py:285 in BlockPool.cache_full_blocks`)."""
        if num_cached_blocks >= num_full_blocks:
            return
        size = self.block_size
        if isinstance(hashes, BlockHashListWithBlockSize):
            size *= hashes.scale_factor
        extra_keys = [generate_block_hash_extra_keys(request, i * size) for i in stored]
        parent = hashes[num_cached_blocks - 1] if num_cached_blocks else None
        lora_request = request.lora_request
        self.kv_event_queue.append(
            BlockStored(
                block_hashes=[maybe_convert_block_hash(hashes[i]) for i in stored],
                parent_block_hash=None if parent is None else maybe_convert_block_hash(parent),
                token_ids=request.all_token_ids[num_cached_blocks * size : num_full_blocks * size],
                block_size=size,
                lora_id=None if lora_request is None else lora_request.lora_int_id,
                medium=MEDIUM_GPU,
                lora_name=None if lora_request is None else lora_request.lora_name,
                extra_keys=list(extra_keys) or None,
                group_idx=kv_cache_group_id,
            )
        )

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> None:
        key = block.block_hash
        super()._maybe_evict_cached_block(block)
        if key is None:
            return
        block_hash, group_id = key, 0
        if self._keys_have_groups:
            block_hash, group_id = get_block_hash(key), get_group_id(key)
        external = maybe_convert_block_hash(block_hash)
        self.kv_event_queue.append(BlockRemoved([external], MEDIUM_GPU, group_id))

    def reset_prefix_cache(self) -> bool:
        done = super().reset_prefix_cache()
        if done:
            self.kv_event_queue.append(AllBlocksCleared())
        return done

    def take_events(self) -> list[KVCacheEvent]:
        events, self.kv_event_queue = self.kv_event_queue, []
        return events
