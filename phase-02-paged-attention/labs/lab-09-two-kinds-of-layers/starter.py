"""Lab 02-09: two kinds of layers. Your work: the functions and methods that raise NotImplementedError.

Every group of layers has a manager with tables of its own, and all take their blocks from one pool. Of
`self.block_pool`, or `block_pool`, you use

    null_block: KVCacheBlock
        stands in a table where no block is needed; it is never read; its `is_null` is True
    free_blocks(ordered_blocks: Iterable[KVCacheBlock]) -> None
        one holder less each; those without any join the back of the free queue, in the order given
    get_cached_blocks(block_hash, kv_cache_group_ids) -> list[KVCacheBlock] | None
        a published block for each of these groups; None if one of them has none

The scene: two groups, the first with full attention, the second with a window of 6. Blocks 1 to 15 are
free, in that order, four tokens each. A step computes at most 8 tokens. First it gives back what is out
of a window, then it takes new blocks, for the first group before the second. Ada's prompt of 28 tokens
is computed in four steps, of 8, 8, 8 and 4 tokens. Ada leaves, and both her tables are given back, the
first group's before the second's, each from its end. A stranger comes with 8 tokens of his own, is
computed in one step, and leaves. Then some look up what they would find: prompts that share Ada's first
12, 20 or 24 tokens and go on with two others, and Ada's own, once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_coordinator import KVCacheCoordinator
from mini_vllm.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from mini_vllm.core.kv_cache_utils import BlockHash
from mini_vllm.core.single_type_kv_cache_manager import Hits, SingleTypeKVCacheManager


def predictions() -> dict[str, list[int] | int]:
    """Your answers about the scene above, by these names, before you write the classes.

    "window table after step 3", "window table after step 4": block ids, 0 for the null block.
    "free queue after step 4": block ids, from front to back.
    "blocks of the stranger": his table in the first group, then that in the second, in one list.
    "found with 12 tokens in common", "found with 20 tokens in common", "found with 24 tokens in common",
    "found by ada herself": tokens that both groups can reuse. One token of a prompt must always run.
    """
    raise NotImplementedError


class SlidingWindowManager(SingleTypeKVCacheManager):
    """The tables of a group of layers that see the last `sliding_window` tokens, the newest among them.

    Source: `vllm/v1/core/single_type_kv_cache_manager.py:542 SlidingWindowManager`.
    """

    def __init__(self, kv_cache_spec: SlidingWindowSpec, *args: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, *args, **kwargs)
        self.sliding_window = kv_cache_spec.sliding_window

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many tokens at the front neither the next token sees nor any after it.

        The next token stands at position `num_computed_tokens`, counted from 0. It sees `self.sliding_window`
        tokens, and the last of them is itself.
        """
        raise NotImplementedError

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Give back the blocks that no token of this request will read again.

        Called before a step takes blocks. `self.req_to_blocks` has the request's table; it may be absent, or
        shorter than what is skipped (hits are not in it yet).

        - A block goes when all its tokens are out of the window.
        - The null block takes its place, because a position finds its block at `position // block_size`.
        - The latest goes back first, so that the earliest is evicted last.
        - Look only at what has come out of the window since the last call: this runs in every step, and a
          long table has many null blocks. A null block is never given back.

        Args:
            total_computed_tokens: tokens of the request that are computed.
        """
        raise NotImplementedError

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: SlidingWindowSpec,
    ) -> Hits:
        """The longest prefix after which the next token finds all that its window shows.

        Args:
            block_hashes: one for each full block of the prompt, from its beginning.
            max_length: the prefix has at most so many tokens. It ends with a block.
            kv_cache_group_ids: groups with the same window; a block counts where all of them have it.
            kv_cache_spec: its `sliding_window` and `block_size`, in tokens.

        Returns one run of blocks for each group, all equally long: the prefix. A block that the next token's
        window needs is never null. Of the blocks before those, none is looked for, and the null block
        stands there. A prefix shorter than the window is needed as a whole. With a window of 1 no block is
        needed, and one is looked for all the same: vLLM does so.
        """
        raise NotImplementedError


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
        """The longest prefix that the groups of all kinds can reuse, and its length in tokens.

        `self.attention_groups` has (spec, group ids) for each kind, full attention first, if there is any.
        `self.find_of_kind` says what one kind finds within a length.

        Returns a run of blocks for each group, by its id, all as long as the hit, and the hit's length.
        """
        raise NotImplementedError
