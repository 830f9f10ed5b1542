"""The small parts of the KV cache: one block's bookkeeping, the queue of free blocks, block hashes.

Mirrors the block half of `vllm/v1/core/kv_cache_utils.py` (`KVCacheBlock` 116,
`FreeKVCacheBlockQueue` 164, `hash_block_tokens` 541). It stands below `request.py`, which hashes its
own blocks, and `block_pool.py`, which publishes them; neither needs the other to run.

How layers form groups, which upstream has in the same file, is in `kv_cache_groups.py`.

Left out: the extra hash keys of multi-modal inputs and prompt embeddings.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NewType, Protocol, overload

if TYPE_CHECKING:
    from mini_vllm.lora.request import LoadedLoRARequest

BlockHash = NewType("BlockHash", bytes)
"""32 bytes that stand for the contents of one full block and of every block before it."""


def make_block_hash_with_group_id(block_hash: BlockHash, group_id: int) -> BlockHash:
    """What a block of one KV cache group is published under, where there are several: layers of another
    group put other K and V of the same tokens into a block of their own
    (`vllm/v1/core/kv_cache_utils.py:55 make_block_hash_with_group_id`)."""
    return BlockHash(block_hash + group_id.to_bytes(4, "big"))


def get_block_hash(key: BlockHash) -> BlockHash:
    """The key without the group's id (`vllm/v1/core/kv_cache_utils.py:67 get_block_hash`)."""
    return BlockHash(key[:-4])


def get_group_id(key: BlockHash) -> int:
    """The id in the key (`vllm/v1/core/kv_cache_utils.py:72 get_group_id`)."""
    return int.from_bytes(key[-4:], "big")


def _init_none_hash() -> BlockHash:
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is None or seed == "random":
        return BlockHash(os.urandom(32))
    return BlockHash(hashlib.sha256(seed.encode()).digest())


NONE_HASH: BlockHash = _init_none_hash()
"""The parent of a first block. Random per process unless PYTHONHASHSEED is set
(`vllm/v1/core/kv_cache_utils.py:97 init_none_hash`), so that nobody can craft colliding prompts."""


def init_none_hash(hash_fn: Callable[[Any], bytes]) -> None:
    """Draw `NONE_HASH` anew, with a hash function of one's own where PYTHONHASHSEED is set
    (`vllm/v1/core/kv_cache_utils.py:97 init_none_hash`). Before any block is hashed."""
    global NONE_HASH
    seed = os.environ.get("PYTHONHASHSEED")
    NONE_HASH = BlockHash(os.urandom(32) if seed is None else hash_fn(seed))


def hash_block_tokens(
    parent_block_hash: BlockHash | None,
    curr_block_token_ids: Sequence[int],
    extra_keys: tuple[str | bytes, ...] | None = None,
    hash_function: Callable[[Any], bytes] | None = None,
) -> BlockHash:
    """Hash one full block, chained to the block before it.

    Equal hashes mean equal contents from the start of the sequence up to and including this block.

    Args:
        parent_block_hash: the hash of the block before, None for the first block.
        curr_block_token_ids: the block's token ids, exactly `block_size` of them.
        extra_keys: what else must be equal for the KV to be shared (here: the adapter, as bytes, and the
            cache salt).
        hash_function: bytes for a tuple of the three, as upstream, where it is the first argument
            (`vllm/utils/hashing.py` has five to choose from). None: SHA-256 over the ids packed as
            8-byte integers, which says the same as upstream's over a pickled tuple and is faster.

    Source: `vllm/v1/core/kv_cache_utils.py:541 hash_block_tokens`.
    """
    if hash_function is not None:
        parts = parent_block_hash or NONE_HASH, tuple(curr_block_token_ids), extra_keys
        return BlockHash(hash_function(parts))
    content = (parent_block_hash or NONE_HASH) + array("q", curr_block_token_ids).tobytes()
    if extra_keys is not None:
        content += b"".join(b"\0" + (k if isinstance(k, bytes) else k.encode()) for k in extra_keys)
    return BlockHash(hashlib.sha256(content).digest())


class HashedRequest(Protocol):
    """What a block hasher reads of a request."""

    all_token_ids: list[int]
    block_hashes: list[BlockHash]
    cache_salt: str | None
    lora_request: LoadedLoRARequest | None
    num_tokens: int


class BlockHashListWithBlockSize(Sequence[BlockHash]):
    """The hashes of larger blocks: a block's is the hashes of the smaller ones in it, one after the other.

    Made as they are asked for, because a look-up asks for few.

    Args:
        block_hashes: those of the smaller blocks.
        scale_factor: how many of them make a larger one.

    Source: `vllm/v1/core/kv_cache_utils.py:2079 BlockHashListWithBlockSize`.
    """

    def __init__(self, block_hashes: Sequence[BlockHash], scale_factor: int) -> None:
        self.block_hashes = block_hashes
        self.scale_factor = scale_factor

    def __len__(self) -> int:
        return len(self.block_hashes) // self.scale_factor

    @overload
    def __getitem__(self, index: int) -> BlockHash: ...

    @overload
    def __getitem__(self, index: slice) -> list[BlockHash]: ...

    def __getitem__(self, index: int | slice) -> BlockHash | list[BlockHash]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        first = range(len(self))[index] * self.scale_factor
        return BlockHash(b"".join(self.block_hashes[first : first + self.scale_factor]))


def generate_block_hash_extra_keys(
    request: HashedRequest, start_token_idx: int
) -> tuple[str | bytes, ...] | None:
    """What beside the tokens a block's hash holds: the adapter, in every block, and the salt, in the first;
    the chain carries it on (`vllm/v1/core/kv_cache_utils.py:503 generate_block_hash_extra_keys`).

    Upstream the adapter's key is its name; here `LoadedLoRARequest.hash_key`, which says why.
    """
    salt = (request.cache_salt,) if request.cache_salt and start_token_idx == 0 else ()
    if request.lora_request is not None:
        return request.lora_request.hash_key, *salt
    return salt or None


def get_request_block_hasher(
    block_size: int, caching_hash_fn: Callable[[Any], bytes] | None = None
) -> Callable[[HashedRequest], list[BlockHash]]:
    """What hashes a request's full blocks that have no hash yet, each once in its life.

    A request that is given none brings its own, which does the same with the default hash.
    Source: `vllm/v1/core/kv_cache_utils.py:637 get_request_block_hasher`.
    """

    def request_block_hasher(request: HashedRequest) -> list[BlockHash]:
        start = len(request.block_hashes) * block_size
        parent = request.block_hashes[-1] if request.block_hashes else None
        new_block_hashes: list[BlockHash] = []
        while start + block_size <= request.num_tokens:
            extra_keys = generate_block_hash_extra_keys(request, start)
            token_ids = request.all_token_ids[start : start + block_size]
            parent = hash_block_tokens(parent, token_ids, extra_keys, caching_hash_fn)
            new_block_hashes.append(parent)
            start += block_size
        return new_block_hashes

    return request_block_hasher


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
        """Take the `n` blocks at the front, in order. `n` must not exceed `num_free_blocks`.
        Source: `vllm/v1/core/kv_cache_utils.py:253 FreeKVCacheBlockQueue.popleft_n`."""
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
        """Take `block` out, wherever it stands, in O(1). RuntimeError if it is not in the queue.
        Source: `vllm/v1/core/kv_cache_utils.py:286 FreeKVCacheBlockQueue.remove`."""
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
        """Put `blocks` at the back, keeping their order
        (`vllm/v1/core/kv_cache_utils.py:329 FreeKVCacheBlockQueue.append_n`)."""
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

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put `blocks` at the front, keeping their order: the first of them is evicted next. Not at the pin
        (`sched/releases.py`)."""
        if not blocks:
            return
        last, following = self.fake_free_list_head, self.fake_free_list_head.next_free_block
        assert following is not None
        for block in blocks:
            last.next_free_block = block
            block.prev_free_block = last
            last = block
        last.next_free_block = following
        following.prev_free_block = last
        self.num_free_blocks += len(blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self.fake_free_list_head.next_free_block
        while block is not None and block is not self.fake_free_list_tail:
            yield block
            block = block.next_free_block

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """All free blocks, next to be evicted first. For tests and traces: O(free blocks)."""
        return list(self)
