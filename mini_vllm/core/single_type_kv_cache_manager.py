"""The tables of one KV cache group, by the kind of its attention: what must stay, what can be found again.

Mirrors `vllm/v1/core/single_type_kv_cache_manager.py`. Used where a model has a window or several groups;
`KVCacheManager` does the same for one group of full attention, in fewer steps.

Where a token does not see all the tokens before it, whole blocks fall out of its sight. They are given back
before the step takes new ones, and the null block stands in their place, so that a position still finds its
block at `position // block_size`. The worker is not told: it never looks there again.

Groups may have blocks of different sizes. A hit then ends where a block ends in every group: at a multiple of
`alignment_tokens`, the least common multiple of the sizes.

Left out: Mamba, cross attention, attention sinks, tokens that a connector loads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice
from typing import Any

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from mini_vllm.core.kv_cache_utils import BlockHash, KVCacheBlock
from mini_vllm.core.request import Request
from mini_vllm.utils.math import cdiv

Hits = tuple[list[KVCacheBlock], ...]
"""A run of blocks for each group, all of the same length."""


class SingleTypeKVCacheManager(ABC):
    """Tables of one group.

    Args:
        kv_cache_spec: what its layers keep.
        block_pool: the pool of all groups.
        kv_cache_group_id: the group's place among them.
        max_admission_blocks_per_request: what a request holds at most; None: it keeps all its blocks.

    Source: `vllm/v1/core/single_type_kv_cache_manager.py:31 SingleTypeKVCacheManager`.
    """

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        block_pool: BlockPool,
        kv_cache_group_id: int,
        max_admission_blocks_per_request: int | None = None,
    ) -> None:
        self.kv_cache_spec = kv_cache_spec
        self.block_size = kv_cache_spec.block_size
        self.block_pool = block_pool
        self.kv_cache_group_id = kv_cache_group_id
        self.max_admission_blocks_per_request = max_admission_blocks_per_request
        # Request id -> its table. Absent: the request holds nothing.
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        # Request id -> how many blocks at the front of its table are published, or gone.
        self.num_cached_block: dict[str, int] = {}

    @classmethod
    @abstractmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: Any,
        alignment_tokens: int = 1,
        use_eagle: bool = False,
    ) -> Hits:
        """The longest cached prefix of at most `max_length` tokens that all these groups hold, as far as
        attention of this kind will read it: the null block stands for what it will not. Its length is a
        multiple of `alignment_tokens`. With `use_eagle` the last block of it is given up.

        Source:
        `vllm/v1/core/single_type_kv_cache_manager.py:373 SingleTypeKVCacheManager.find_longest_cache_hit`.
        """

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many tokens at the front the next token does not see, nor any after it."""
        return 0

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """Blocks that leave the free queue if the request gets slots for `num_tokens` tokens in all.

        Args:
            new_computed_blocks: prefix hits; those that are free leave the queue when they are touched.
            total_computed_tokens: tokens computed already, hits among them.
            apply_admission_cap: count the request's whole sequence as it will be computed, in steps, with
                blocks given back in between. For the question whether to admit it, never for one step.

        Source:
        `vllm/v1/core/single_type_kv_cache_manager.py:89 SingleTypeKVCacheManager.get_num_blocks_to_allocate`.
        """
        num_required_blocks = cdiv(num_tokens, self.block_size)
        cap = self.max_admission_blocks_per_request
        if apply_admission_cap and cap is not None:
            num_required_blocks = min(num_required_blocks, cap)
        num_req_blocks = len(self.req_to_blocks.get(request_id, ()))
        if request_id in self.num_cached_block:  # it runs, and hits come only with an admission
            return max(num_required_blocks - num_req_blocks, 0)
        num_skipped_blocks = self.get_num_skipped_tokens(total_computed_tokens) // self.block_size
        num_there = max(num_skipped_blocks, len(new_computed_blocks) + num_req_blocks)
        # Hits that will not be read are not touched either.
        touched = new_computed_blocks[max(0, num_skipped_blocks - num_req_blocks) :]
        num_evictable_blocks = sum(block.ref_cnt == 0 and not block.is_null for block in touched)
        return max(num_required_blocks - num_there, 0) + num_evictable_blocks

    def allocate_new_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[KVCacheBlock], num_computed_tokens: int
    ) -> None:
        """Begin the table of a request that holds nothing with its prefix hits."""
        assert not self.req_to_blocks.get(request_id), "hits are for a request that holds nothing"
        num_skipped_blocks = self.get_num_skipped_tokens(num_computed_tokens) // self.block_size
        read = new_computed_blocks[num_skipped_blocks:]
        self.block_pool.touch(read)
        blocks = [self.block_pool.null_block] * num_skipped_blocks
        blocks.extend(read)
        self.req_to_blocks[request_id] = blocks
        self.num_cached_block[request_id] = len(blocks)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Take what is missing for `num_tokens` tokens in all; the blocks taken.

        Source:
        `vllm/v1/core/single_type_kv_cache_manager.py:243 SingleTypeKVCacheManager.allocate_new_blocks`.
        """
        blocks = self.req_to_blocks.setdefault(request_id, [])
        num_new_blocks = cdiv(num_tokens, self.block_size) - len(blocks)
        if num_new_blocks <= 0:
            return []
        new_blocks = self.block_pool.get_new_blocks(num_new_blocks)
        blocks.extend(new_blocks)
        return new_blocks

    def serves_hits(self, position: int, alignment_tokens: int) -> bool:
        """Whether any hit that ends at a multiple of `alignment_tokens` reads the block at this position."""
        return True

    def cache_blocks(
        self,
        request: Request,
        num_tokens: int,
        block_hashes: Sequence[BlockHash] | None = None,
        alignment_tokens: int = 1,
    ) -> None:
        """Publish the full blocks among the request's first `num_tokens` tokens that can serve a hit.

        Args:
            block_hashes: the request's, of blocks as large as the group's; None: as it has them.

        Source: `vllm/v1/core/single_type_kv_cache_manager.py:278 SingleTypeKVCacheManager.cache_blocks`.
        """
        request_id = request.request_id
        num_cached_blocks = self.num_cached_block.get(request_id, 0)
        num_full_blocks = num_tokens // self.block_size
        if num_cached_blocks < num_full_blocks:
            block_mask = None
            if alignment_tokens > self.block_size:
                block_mask = [
                    self.serves_hits(i, alignment_tokens)
                    for i in range(num_cached_blocks, num_full_blocks)
                ]
            self.block_pool.cache_full_blocks_of_group(
                request,
                self.req_to_blocks[request_id],
                num_cached_blocks,
                num_full_blocks,
                self.kv_cache_group_id,
                request.block_hashes if block_hashes is None else block_hashes,
                block_mask,
            )
            self.num_cached_block[request_id] = num_full_blocks

    def free(self, request_id: str) -> None:
        """Give back all blocks of the request, the tail first.

        Source: `vllm/v1/core/single_type_kv_cache_manager.py:338 SingleTypeKVCacheManager.free`.
        """
        blocks = self.req_to_blocks.pop(request_id, [])
        self.num_cached_block.pop(request_id, None)
        self.block_pool.free_blocks(reversed(blocks))

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Give back the blocks that this request will not read again, the latest first.

        They keep their hashes: another request may still hit them.
        Source:
        `vllm/v1/core/single_type_kv_cache_manager.py:420 SingleTypeKVCacheManager.remove_skipped_blocks`.
        """
        num_skipped_tokens = self.get_num_skipped_tokens(total_computed_tokens)
        if num_skipped_tokens <= 0:
            return
        blocks = self.req_to_blocks.get(request_id, [])
        removed: list[KVCacheBlock] = []
        for i in range(min(num_skipped_tokens // self.block_size, len(blocks)) - 1, -1, -1):
            if blocks[i].is_null:
                break  # an earlier call has come this far
            removed.append(blocks[i])
            blocks[i] = self.block_pool.null_block
        self.block_pool.free_blocks(removed)


def _cut(runs: Hits, block_size: int, alignment_tokens: int) -> None:
    """Shorten runs of blocks to a multiple of `alignment_tokens`."""
    num_tokens = len(runs[0]) * block_size // alignment_tokens * alignment_tokens
    for run in runs:
        del run[num_tokens // block_size :]


def _drop_last(runs: Hits) -> None:
    for run in runs:
        del run[-1:]


class FullAttentionManager(SingleTypeKVCacheManager):
    """Nothing is ever out of sight
    (`vllm/v1/core/single_type_kv_cache_manager.py:481 FullAttentionManager`)."""

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: FullAttentionSpec,
        alignment_tokens: int = 1,
        use_eagle: bool = False,
    ) -> Hits:
        """From the left to the first miss: hashes are chained, so what follows cannot be a hit."""
        computed: Hits = tuple([] for _ in kv_cache_group_ids)
        for block_hash in islice(block_hashes, max_length // kv_cache_spec.block_size):
            found = block_pool.get_cached_blocks(block_hash, kv_cache_group_ids)
            if found is None:
                break
            for run, block in zip(computed, found, strict=True):
                run.append(block)
        if use_eagle:
            _drop_last(computed)
        _cut(computed, kv_cache_spec.block_size, alignment_tokens)
        return computed


class SlidingWindowManager(SingleTypeKVCacheManager):
    """A token sees the last `sliding_window` tokens, itself among them
    (`vllm/v1/core/single_type_kv_cache_manager.py:542 SlidingWindowManager`)."""

    def __init__(self, kv_cache_spec: SlidingWindowSpec, *args: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, *args, **kwargs)
        self.sliding_window = kv_cache_spec.sliding_window

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: SlidingWindowSpec,
        alignment_tokens: int = 1,
        use_eagle: bool = False,
    ) -> Hits:
        """From the right, until as many blocks in a row are hits as the next token's window reaches back.

        What lies before them may be gone. A shorter run serves only if it begins with the sequence.
        Source:
        `vllm/v1/core/single_type_kv_cache_manager.py:548 SlidingWindowManager.find_longest_cache_hit`.
        """
        # The next token is in its window itself.
        block_size = kv_cache_spec.block_size
        num_needed = cdiv(kv_cache_spec.sliding_window - 1, block_size) + use_eagle
        num_blocks = max_length // block_size
        computed: Hits = tuple([block_pool.null_block] * num_blocks for _ in kv_cache_group_ids)
        in_a_row = 0
        for i in range(num_blocks - 1, -1, -1):
            found = block_pool.get_cached_blocks(block_hashes[i], kv_cache_group_ids)
            if found is None:
                in_a_row = 0
                continue
            if not in_a_row and (i + 1 - use_eagle) * block_size % alignment_tokens:
                continue  # no hit ends here
            for run, block in zip(computed, found, strict=True):
                run[i] = block
            in_a_row += 1
            if in_a_row >= num_needed:
                for run in computed:
                    del run[i + in_a_row :]
                break
        else:
            for run in computed:
                del run[in_a_row:]
            _cut(computed, block_size, alignment_tokens)
        if use_eagle:
            _drop_last(computed)
            _cut(computed, block_size, alignment_tokens)
        return computed

    def serves_hits(self, position: int, alignment_tokens: int) -> bool:
        """Only if it is among the blocks that the window needs before such an end
        (`vllm/v1/core/single_type_kv_cache_manager.py:641 SlidingWindowManager._cache_block_mask`)."""
        blocks_between = alignment_tokens // self.block_size
        num_needed = cdiv(self.sliding_window - 1, self.block_size)
        return blocks_between <= 1 or position % blocks_between >= blocks_between - num_needed

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """The next token, at position n, sees positions from `n - sliding_window + 1` on.

        Source:
        `vllm/v1/core/single_type_kv_cache_manager.py:654 SlidingWindowManager.get_num_skipped_tokens`.
        """
        return max(0, num_computed_tokens - self.sliding_window + 1)


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager):
    """A token sees its own chunk's tokens before it, and no other chunk
    (`vllm/v1/core/single_type_kv_cache_manager.py:692 ChunkedLocalAttentionManager`).

    Right only where a chunk is a number of whole blocks. With chunks of 8 tokens and blocks of 3, two blocks
    before position 8 count as hits, and tokens 6 and 7 would then attend to null blocks. vLLM's manager says
    the same, but no token is computed so: its attention asserts that chunks are whole blocks
    (`vllm/v1/attention/backends/utils.py:325 in make_local_attention_virtual_batches`).
    """

    def __init__(self, kv_cache_spec: ChunkedLocalAttentionSpec, *args: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, *args, **kwargs)
        self.attention_chunk_size = kv_cache_spec.attention_chunk_size

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: ChunkedLocalAttentionSpec,
        alignment_tokens: int = 1,
        use_eagle: bool = False,
    ) -> Hits:
        """Chunks that are over count as hits, cached or not; in the last one, up to the first miss."""
        size = kv_cache_spec.attention_chunk_size
        first = max_length // size * size // kv_cache_spec.block_size
        computed: Hits = tuple([block_pool.null_block] * first for _ in kv_cache_group_ids)
        for i in range(first, max_length // kv_cache_spec.block_size):
            found = block_pool.get_cached_blocks(block_hashes[i], kv_cache_group_ids)
            if found is None:
                break
            for run, block in zip(computed, found, strict=True):
                run.append(block)
        return computed

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """All chunks before the next token's own."""
        return num_computed_tokens // self.attention_chunk_size * self.attention_chunk_size


SPEC_MANAGER_MAP: dict[type[KVCacheSpec], type[SingleTypeKVCacheManager]] = {
    FullAttentionSpec: FullAttentionManager,
    SlidingWindowSpec: SlidingWindowManager,
    ChunkedLocalAttentionSpec: ChunkedLocalAttentionManager,
}


def get_manager_for_kv_cache_spec(
    kv_cache_spec: KVCacheSpec,
    max_num_batched_tokens: int,
    max_model_len: int,
    block_pool: BlockPool,
    kv_cache_group_id: int,
) -> SingleTypeKVCacheManager:
    """The manager for a group's kind of attention, with what a request can hold at most, if that is less
    than all its blocks.

    Source: `vllm/v1/core/single_type_kv_cache_manager.py:1214 get_manager_for_kv_cache_spec`.
    """
    cap = None
    if not isinstance(kv_cache_spec, FullAttentionSpec):
        cap = kv_cache_spec.max_admission_blocks_per_request(max_num_batched_tokens, max_model_len)
    manager_class = SPEC_MANAGER_MAP[type(kv_cache_spec)]
    return manager_class(kv_cache_spec, block_pool, kv_cache_group_id, cap)
