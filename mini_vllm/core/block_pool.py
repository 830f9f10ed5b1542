"""The pool of KV cache blocks: which request holds which block, which are free, which can be found by hash.

Mirrors `vllm/v1/core/block_pool.py` (`BlockHashToBlockMap` 34, `BlockPool` 130). The blocks, their
free queue and their hashes are in `kv_cache_utils.py`, as upstream.

Where a model has several KV cache groups the hashes below carry the group's id
(`make_block_hash_with_group_id`); with one group of full attention they do not, and need not.

Left out: block lifetime metrics. KV cache events are in `event_block_pool.py`.

Invariants, checked by `BlockPool.check_invariants` (and by the tests, by these names):

* I1  A block is in the free queue if and only if its `ref_cnt` is 0. The null block is in neither
      state: it is never free and its count is not kept.
* I2  A request's block table only grows while it runs: entries are appended, never exchanged.
      (Asserted where the tables are: `KVCacheManager.check_invariants`.)
* I3  Only a full block carries a hash.
* I4  The hash index and the blocks agree: every block with a hash is in the index under that hash,
      and the index holds nothing else.
* I5  A block is published (hashed, indexed) by the plan that fills it, before its KV is complete.
      Sound because each layer writes all K/V of a step before any row of that step attends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mini_vllm.core.kv_cache_utils import (
    BlockHash,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    make_block_hash_with_group_id,
)

if TYPE_CHECKING:
    from mini_vllm.core.request import Request
    from mini_vllm.distributed.kv_events import KVCacheEvent


class BlockHashToBlockMap:
    """The hash index: block hash -> the blocks that hold that content.

    Two requests that fill the same content at the same time keep two blocks with one hash. Upstream
    does not merge them, so that a block id, once in a table, never changes (I2); neither do we.
    Mostly there is one block a hash, so the value is the block itself and becomes a dict only when
    a second one comes. Source: `vllm/v1/core/block_pool.py:34 BlockHashToBlockMap`.
    """

    def __init__(self) -> None:
        self._cache: dict[BlockHash, KVCacheBlock | dict[int, KVCacheBlock]] = {}

    def get_one_block(self, key: BlockHash) -> KVCacheBlock | None:
        """The block published first among those with this hash, or None."""
        found = self._cache.get(key)
        if isinstance(found, dict):
            return next(iter(found.values()))
        return found

    def insert(self, key: BlockHash, block: KVCacheBlock) -> None:
        found = self._cache.get(key)
        if found is None:
            self._cache[key] = block
        elif isinstance(found, dict):
            found[block.block_id] = block
        else:
            self._cache[key] = {found.block_id: found, block.block_id: block}

    def pop(self, key: BlockHash, block_id: int) -> KVCacheBlock | None:
        """Take one block out of the index; None if it is not there."""
        found = self._cache.get(key)
        if isinstance(found, dict):
            block = found.pop(block_id, None)
            if not found:
                del self._cache[key]
            return block
        if found is None or found.block_id != block_id:
            return None
        del self._cache[key]
        return found

    def items(self) -> Iterator[tuple[BlockHash, KVCacheBlock]]:
        for key, found in self._cache.items():
            for block in found.values() if isinstance(found, dict) else (found,):
                yield key, block

    def __len__(self) -> int:
        return len(self._cache)


class BlockPool:
    """All blocks of the KV cache: allocation, freeing, and the prefix cache's index.

    A freed block keeps its hash and its KV: it waits at the back of the free queue and can be
    revived by `touch` until `get_new_blocks` takes it for another request. Eviction is thus lazy: it
    happens when the block is given away, not when it is freed.

    Block 0 is the null block: a placeholder that is never given out, so that table entries that
    mean nothing can safely say 0. A pool of `num_gpu_blocks` serves `num_gpu_blocks - 1`.

    Args:
        num_gpu_blocks: blocks in the pool, the null block included; at least 2 to be of any use.
        enable_caching: keep and look up hashes.

    Raises ValueError if `num_gpu_blocks` is not a positive integer.
    Source: `vllm/v1/core/block_pool.py:130 BlockPool`.
    """

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = True) -> None:
        if not isinstance(num_gpu_blocks, int) or num_gpu_blocks <= 0:
            raise ValueError(f"num_gpu_blocks must be a positive integer, got {num_gpu_blocks!r}")
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.null_block, *usable = self.blocks
        self.null_block.is_null = True
        self.free_block_queue = FreeKVCacheBlockQueue(usable)

    def get_cached_block(self, block_hash: BlockHash) -> KVCacheBlock | None:
        """The block that holds this content, free or in use; None on a miss."""
        return self.cached_block_hash_to_block.get_one_block(block_hash)

    def cache_full_blocks(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
    ) -> None:
        """Publish `blocks[num_cached_blocks:num_full_blocks]` under the request's hashes (I3, I5).

        Source: `vllm/v1/core/block_pool.py:211 BlockPool.cache_full_blocks`.
        """
        hashes = request.block_hashes
        assert len(hashes) >= num_full_blocks, "I3: a block without a hash is not full"
        publish = self.cached_block_hash_to_block.insert
        for i in range(num_cached_blocks, num_full_blocks):
            block = blocks[i]
            assert block.block_hash is None, f"block {block.block_id} is published already"
            block.block_hash = block_hash = hashes[i]
            publish(block_hash, block)

    def get_cached_blocks(
        self, block_hash: BlockHash, kv_cache_group_ids: Sequence[int]
    ) -> list[KVCacheBlock] | None:
        """A block for each of these groups that holds this content; None if one of them has none.

        Source: `vllm/v1/core/block_pool.py:184 BlockPool.get_cached_block`.
        """
        found = []
        for group_id in kv_cache_group_ids:
            block = self.get_cached_block(make_block_hash_with_group_id(block_hash, group_id))
            if block is None:
                return None
            found.append(block)
        return found

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
        """As `cache_full_blocks`, for one group's table. Null blocks stand for what is out of the window.

        Args:
            block_hashes: the request's, of blocks as large as the group's.
            block_mask: of each of the blocks to publish, whether it is; None: all are.
        """
        assert len(block_hashes) >= num_full_blocks, "I3: a block without a hash is not full"
        for i in range(num_cached_blocks, num_full_blocks):
            block = blocks[i]
            if block.is_null or (block_mask and not block_mask[i - num_cached_blocks]):
                continue
            assert block.block_hash is None, f"block {block.block_id} is published already"
            key = make_block_hash_with_group_id(block_hashes[i], kv_cache_group_id)
            block.block_hash = key
            self.cached_block_hash_to_block.insert(key, block)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take `num_blocks` from the front of the free queue, forgetting what they held.

        Raises ValueError if fewer are free. Source:
        `vllm/v1/core/block_pool.py:333 BlockPool.get_new_blocks`.
        """
        if num_blocks > self.free_block_queue.num_free_blocks:
            raise ValueError(
                f"Cannot get {num_blocks} free blocks: "
                f"{self.free_block_queue.num_free_blocks} are free"
            )
        taken = self.free_block_queue.popleft_n(num_blocks)
        for block in taken:
            if block.block_hash is not None:
                self._maybe_evict_cached_block(block)
            assert block.ref_cnt == 0, "I1: a block of the free queue is referenced"
            block.ref_cnt = 1
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add a reference to each block; a free one leaves the free queue, its KV intact.

        Source: `vllm/v1/core/block_pool.py:402 BlockPool.touch`.
        """
        take_out = self.free_block_queue.remove
        for block in blocks:
            if not block.ref_cnt and not block.is_null:
                take_out(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Drop a reference from each; those at 0 join the free queue in the order given.

        Source: `vllm/v1/core/block_pool.py:419 BlockPool.free_blocks`.
        """
        unused: list[KVCacheBlock] = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if not block.ref_cnt and not block.is_null:
                unused.append(block)
        self.free_block_queue.append_n(unused)

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> None:
        if block.block_hash is not None:
            self.cached_block_hash_to_block.pop(block.block_hash, block.block_id)
            block.reset_hash()

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Take these blocks out of the index, free or in use. Requests that hold them keep them.

        Source: `vllm/v1/core/block_pool.py:435 BlockPool.evict_blocks`.
        """
        for block_id in block_ids:
            self._maybe_evict_cached_block(self.blocks[block_id])

    def reset_prefix_cache(self) -> bool:
        """Forget every hash. Refused (False) while any block is in use."""
        if self.num_gpu_blocks - self.get_num_free_blocks() != 1:
            return False
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        for block in self.blocks:
            block.reset_hash()
        return True

    def take_events(self) -> list[KVCacheEvent]:
        """None: this pool keeps no record."""
        return []

    def get_num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """The share of usable blocks that are in use, 0.0 to 1.0."""
        usable = self.num_gpu_blocks - 1
        return 1.0 - self.get_num_free_blocks() / usable if usable else 0.0

    def check_invariants(self) -> None:
        """Assert I1 and I4 over the whole pool. O(blocks): for tests, not for the step."""
        free = self.free_block_queue.get_all_free_blocks()
        assert len(free) == self.free_block_queue.num_free_blocks, "I1: the free count is off"
        free_ids = {block.block_id for block in free}
        assert len(free_ids) == len(free), "I1: a block is in the free queue twice"
        assert self.null_block.block_id not in free_ids, "I1: the null block is free"
        for block in self.blocks[1:]:
            assert (block.ref_cnt == 0) == (block.block_id in free_ids), f"I1 fails for {block}"
            assert block.ref_cnt >= 0, f"I1: negative count, {block}"
        indexed = {(key, block.block_id) for key, block in self.cached_block_hash_to_block.items()}
        hashed = {(b.block_hash, b.block_id) for b in self.blocks if b.block_hash is not None}
        assert indexed == hashed, "I4: the hash index and the blocks disagree"
