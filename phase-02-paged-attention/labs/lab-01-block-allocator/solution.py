"""Lab 02-01: who holds which block, which are free, which can be found again. The reference solution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mini_vllm.core.block_pool import BlockHashToBlockMap
from mini_vllm.core.kv_cache_utils import BlockHash, KVCacheBlock
from mini_vllm.core.request import Request


class FreeKVCacheBlockQueue:
    """Free blocks, next to be given away first: a linked list through the blocks themselves.

    `block.prev_free_block` and `block.next_free_block` are the links, and both are None in a block
    that is not in the queue. Two sentinels stand at the ends, so no operation has to ask whether it
    is the first or the last. Source: `vllm/v1/core/kv_cache_utils.py:164 FreeKVCacheBlockQueue`.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        self.fake_free_list_head = KVCacheBlock(-1)
        self.fake_free_list_tail = KVCacheBlock(-1)
        self.fake_free_list_head.next_free_block = self.fake_free_list_tail
        self.fake_free_list_tail.prev_free_block = self.fake_free_list_head
        self.append_n(blocks)

    def remove(self, block: KVCacheBlock) -> None:
        """Take `block` out, wherever it stands. RuntimeError if it is not in the queue."""
        before, after = block.prev_free_block, block.next_free_block
        if before is None or after is None:
            raise RuntimeError(f"remove() called on a block that is not free: {block}")
        before.next_free_block = after
        after.prev_free_block = before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the `n` blocks at the front, first one first. They leave with both links None."""
        assert self.num_free_blocks >= n, f"asked for {n} of {self.num_free_blocks} free blocks"
        taken = []
        for _ in range(n):
            block = self.fake_free_list_head.next_free_block
            assert block is not None
            self.remove(block)
            taken.append(block)
        return taken

    # -- given ------------------------------------------------------------------------------------

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put `blocks` at the back, in this order."""
        for block in blocks:
            last = self.fake_free_list_tail.prev_free_block
            assert last is not None
            last.next_free_block = block
            block.prev_free_block = last
            block.next_free_block = self.fake_free_list_tail
            self.fake_free_list_tail.prev_free_block = block
        self.num_free_blocks += len(blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self.fake_free_list_head.next_free_block
        while block is not None and block is not self.fake_free_list_tail:
            yield block
            block = block.next_free_block

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return list(self)


class BlockPool:
    """All blocks: given out, shared, given back, found again by what they hold.

    Args:
        num_gpu_blocks: blocks in all. Block 0 is the null block and is never given out.
        enable_caching: whether hashes will be published and looked up. The pool itself need not check.

    Source: `vllm/v1/core/block_pool.py:130 BlockPool`.
    """

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = True) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.null_block, *usable = self.blocks
        self.null_block.is_null = True
        self.free_block_queue = FreeKVCacheBlockQueue(usable)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take `num_blocks` from the front of the queue, for one holder (`ref_cnt` 1 each).

        Somebody will overwrite them, so a block that can still be found by its hash is made
        impossible to find: out of the index, hash None. That is when a cached block is evicted.

        Raises ValueError, and changes nothing, if fewer are free.
        """
        if num_blocks > self.free_block_queue.num_free_blocks:
            raise ValueError(
                f"Cannot get {num_blocks} free blocks: "
                f"{self.free_block_queue.num_free_blocks} are free"
            )
        taken = self.free_block_queue.popleft_n(num_blocks)
        for block in taken:
            self._maybe_evict_cached_block(block)
            block.ref_cnt = 1
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add one holder to each block; hash and contents stay. A free block leaves the queue.

        The null block is counted, too, but it is never in the queue.
        """
        for block in blocks:
            if block.ref_cnt == 0 and block is not self.null_block:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Take one holder from each block. Those without any join the back of the queue, in the order given.

        They keep their hashes, so that they can be found until `get_new_blocks` takes them. The null
        block never joins. `ordered_blocks` may be an iterator, which can be read only once.
        """
        unused = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0 and not block.is_null:
                unused.append(block)
        self.free_block_queue.append_n(unused)

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> None:
        """If `block` is published, take exactly this block out of the index, and reset its hash."""
        if block.block_hash is not None:
            self.cached_block_hash_to_block.pop(block.block_hash, block.block_id)
            block.reset_hash()

    # -- given ------------------------------------------------------------------------------------

    def cache_full_blocks(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
    ) -> None:
        """Publish the blocks that have become full: give each its hash, and put it into the index.

        Args:
            request: its `block_hashes[i]` is the hash of the i-th block of its table.
            blocks: its table, in order.
            num_cached_blocks: so many at the front are published already.
            num_full_blocks: so many at the front are full.
        """
        for i in range(num_cached_blocks, num_full_blocks):
            assert blocks[i].block_hash is None, f"{blocks[i]} is published already"
            blocks[i].block_hash = request.block_hashes[i]
            self.cached_block_hash_to_block.insert(request.block_hashes[i], blocks[i])

    def get_cached_block(self, block_hash: BlockHash) -> KVCacheBlock | None:
        """The block that holds this content, free or in use; None on a miss."""
        return self.cached_block_hash_to_block.get_one_block(block_hash)

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Make these blocks impossible to find. Requests that hold them keep them."""
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

    def get_num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """The share of usable blocks that are in use, 0.0 to 1.0."""
        usable = self.num_gpu_blocks - 1
        return 1.0 - self.get_num_free_blocks() / usable if usable else 0.0

    def check_invariants(self) -> None:
        """Assert I1 and I4 over the whole pool."""
        free = self.free_block_queue.get_all_free_blocks()
        assert len(free) == self.free_block_queue.num_free_blocks, "I1: the free count is off"
        free_ids = {block.block_id for block in free}
        assert len(free_ids) == len(free), "I1: a block is in the free queue twice"
        assert 0 not in free_ids, "I1: the null block is free"
        for block in self.blocks[1:]:
            assert block.ref_cnt >= 0, f"I1: negative count, {block}"
            assert (block.ref_cnt == 0) == (block.block_id in free_ids), f"I1 fails for {block}"
        indexed = {(key, block.block_id) for key, block in self.cached_block_hash_to_block.items()}
        hashed = {(b.block_hash, b.block_id) for b in self.blocks if b.block_hash is not None}
        assert indexed == hashed, "I4: the hash index and the blocks disagree"
