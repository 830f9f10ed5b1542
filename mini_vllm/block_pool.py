"""The pool of KV cache blocks: who holds which block, which are free, which can be found by hash.

Mirrors `vllm/v1/core/block_pool.py` (`BlockHashToBlockMap` 34, `BlockPool` 130) and the block half
of `vllm/v1/core/kv_cache_utils.py` (`KVCacheBlock` 116, `FreeKVCacheBlockQueue` 164,
`hash_block_tokens` 541).

Left out: KV cache groups (hybrid models; the group id in the hash key), KV events, block lifetime
metrics, the extra hash keys of LoRA, multi-modal inputs and prompt embeddings.

Invariants, checked by `BlockPool.check_invariants` (and by the tests, by these names):

* I1  A block is in the free queue if and only if its `ref_cnt` is 0. The null block is in neither
      state: it is never free and its count is not kept.
* I2  A request's block table only grows while it runs: entries are appended, never exchanged.
      (Asserted where the tables are: `KVCacheManager.check_invariants`.)
* I3  Only a full block carries a hash.
* I4  The hash index and the blocks agree: every block with a hash is in the index under that hash,
      and the index holds nothing else.
* I5  A block is published (hashed, indexed) when it is allocated, before its KV exists. This is
      sound because each layer writes all K/V of a step before any row of that step attends.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from mini_vllm.request import Request

_sha256 = hashlib.sha256

BlockHash = NewType("BlockHash", bytes)
"""32 bytes that stand for the contents of one full block and of every block before it."""


def _init_none_hash() -> BlockHash:
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is None or seed == "random":
        return BlockHash(os.urandom(32))
    return BlockHash(hashlib.sha256(seed.encode()).digest())


NONE_HASH: BlockHash = _init_none_hash()
"""The parent of a first block. Random per process unless PYTHONHASHSEED is set
(`vllm/v1/core/kv_cache_utils.py:97 init_none_hash`), so that nobody can craft colliding prompts."""


def hash_block_tokens(
    parent_block_hash: BlockHash | None,
    curr_block_token_ids: Sequence[int],
    extra_keys: tuple[str, ...] | None = None,
) -> BlockHash:
    """Hash one full block, chained to the block before it.

    Equal hashes mean equal contents from the start of the sequence up to and including this block.

    Args:
        parent_block_hash: the hash of the block before, None for the first block.
        curr_block_token_ids: the block's token ids, exactly `block_size` of them.
        extra_keys: what else must be equal for the KV to be shared (here: the cache salt).

    Source: `vllm/v1/core/kv_cache_utils.py:541 hash_block_tokens`. Upstream pickles a tuple and
    hashes that; here the ids are packed as 8-byte integers, which says the same and is faster.
    """
    content = (parent_block_hash or NONE_HASH) + array("q", curr_block_token_ids).tobytes()
    if extra_keys is not None:
        content += b"".join(b"\0" + key.encode() for key in extra_keys)
    return BlockHash(_sha256(content).digest())


class KVCacheBlock:
    """The bookkeeping of one block; the KV itself lives in the worker's arrays, at this `block_id`.

    Source: `vllm/v1/core/kv_cache_utils.py:116 KVCacheBlock`.
    """

    __slots__ = (
        "block_hash",
        "block_id",
        "is_null",
        "next_free_block",
        "prev_free_block",
        "ref_cnt",
    )

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: BlockHash | None = None  # set only while full and published (I3)
        self.is_null = False
        # The links of the free queue. Only FreeKVCacheBlockQueue touches them.
        self.prev_free_block: KVCacheBlock | None = None
        self.next_free_block: KVCacheBlock | None = None

    def reset_hash(self) -> None:
        self.block_hash = None

    def __repr__(self) -> str:
        hashed = self.block_hash.hex()[:8] if self.block_hash else None
        return f"KVCacheBlock(block_id={self.block_id}, ref_cnt={self.ref_cnt}, hash={hashed})"


class FreeKVCacheBlockQueue:
    """Free blocks in eviction order, as a doubly linked list through the blocks themselves.

    The front is evicted first. A list is needed rather than a deque because a prefix hit takes a
    block out of the middle (`remove`), in O(1). Two sentinels spare every operation the question
    whether it stands at an end; no operation allocates an object.

    Source: `vllm/v1/core/kv_cache_utils.py:164 FreeKVCacheBlockQueue`.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        self.fake_free_list_head = KVCacheBlock(-1)
        self.fake_free_list_tail = KVCacheBlock(-1)
        self.fake_free_list_head.next_free_block = self.fake_free_list_tail
        self.fake_free_list_tail.prev_free_block = self.fake_free_list_head
        self.append_n(blocks)

    def popleft(self) -> KVCacheBlock:
        """Take the block at the front. Raises ValueError if the queue is empty."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the `n` blocks at the front, in order. `n` must not exceed `num_free_blocks`."""
        if n == 0:
            return []
        assert self.num_free_blocks >= n, f"asked for {n} of {self.num_free_blocks} free blocks"
        taken: list[KVCacheBlock] = []
        head = self.fake_free_list_head
        block = head.next_free_block
        for _ in range(n):
            assert block is not None
            taken.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
        assert block is not None  # at the latest, the tail sentinel
        head.next_free_block = block
        block.prev_free_block = head
        self.num_free_blocks -= n
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Take `block` out, wherever it stands, in O(1). RuntimeError if it is not in the queue."""
        before, after = block.prev_free_block, block.next_free_block
        if before is None or after is None:
            raise RuntimeError(f"remove() called on a block that is not free: {block}")
        before.next_free_block = after
        after.prev_free_block = before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Put `block` at the back: it will be evicted after all that are free now."""
        self.append_n((block,))

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put `blocks` at the back, keeping their order."""
        if not blocks:
            return
        tail = self.fake_free_list_tail
        last = tail.prev_free_block
        assert last is not None
        for block in blocks:
            last.next_free_block = block
            block.prev_free_block = last
            last = block
        last.next_free_block = tail
        tail.prev_free_block = last
        self.num_free_blocks += len(blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self.fake_free_list_head.next_free_block
        while block is not None and block is not self.fake_free_list_tail:
            yield block
            block = block.next_free_block

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """All free blocks, next to be evicted first. For tests and traces: O(free blocks)."""
        return list(self)


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
        if type(found) is dict:
            return next(iter(found.values()))
        return found  # type: ignore[return-value]

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
    revived by `touch` until `get_new_blocks` takes it for somebody else. Eviction is thus lazy: it
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
        evict = self.cached_block_hash_to_block.pop
        for block in taken:
            if block.block_hash is not None:
                evict(block.block_hash, block.block_id)
                block.block_hash = None
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
            if block.ref_cnt == 0 and not block.is_null:
                unused.append(block)
        self.free_block_queue.append_n(unused)

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
        """Assert I1 and I4 over the whole pool. O(blocks): for tests, not for the step."""
        free = self.free_block_queue.get_all_free_blocks()
        assert len(free) == self.free_block_queue.num_free_blocks, "I1: the free count is off"
        free_ids = {block.block_id for block in free}
        assert len(free_ids) == len(free), "I1: a block is in the free queue twice"
        assert self.null_block.block_id not in free_ids, "I1: the null block is free"
        for block in self.blocks[1:]:
            assert (block.ref_cnt == 0) == (block.block_id in free_ids), f"I1 fails for {block}"
            assert block.ref_cnt >= 0, f"I1: negative count, {block}"
        indexed = {block.block_id: key for key, block in self.cached_block_hash_to_block.items()}
        hashed = {b.block_id: b.block_hash for b in self.blocks if b.block_hash is not None}
        assert indexed == hashed, "I4: the hash index and the blocks disagree"
