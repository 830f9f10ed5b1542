"""Lab 02-03: share and evict. Your work: the functions and methods that raise NotImplementedError.

The pool of lab 02-01 knows blocks. The manager knows requests: which blocks each one holds, in which
order, what it can have without computing it, and whether the rest fits. Of `self.block_pool` you use

    get_new_blocks(num_blocks: int) -> list[KVCacheBlock]
        from the front of the free queue, each with `ref_cnt` 1; ValueError if fewer are free
    touch(blocks: Iterable[KVCacheBlock]) -> None
        one more holder each; one that was free (`ref_cnt` 0) leaves the queue
    free_blocks(ordered_blocks: Iterable[KVCacheBlock]) -> None
        one holder less each; those without any join the back of the queue, in the order given
    cache_full_blocks(request, blocks: Sequence[KVCacheBlock], num_cached_blocks: int,
                      num_full_blocks: int) -> None
        publishes `blocks[num_cached_blocks:num_full_blocks]` of the request's table `blocks`
    get_cached_block(block_hash) -> KVCacheBlock | None
        the published block with this content; None on a miss
    get_num_free_blocks() -> int
        length of the free queue

`KVCacheBlocks(blocks)` wraps a list for the caller; its `.blocks` gives it back. Of a request you need
`request_id`, `num_tokens` (prompt and answer so far), `num_computed_tokens`, `block_hashes` (one for each
full block) and `skip_reading_prefix_cache`.

The scene: blocks 1 to 9 are free, in that order, four tokens each. Ada (10 tokens) and Bo (the same first
8, then 2 of his own) are admitted in one step. Eve only looks: her prompt begins with 4 tokens of her own and
goes on with Ada's fifth to tenth. Ada leaves, then Bo. Cy comes with 28 tokens of his own and leaves
again. Then Ada comes a second time. Nobody generates a token in between.
"""

from __future__ import annotations

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.kv_cache_utils import KVCacheBlock
from mini_vllm.core.request import Request
from mini_vllm.core.stats import PrefixCacheStats
from mini_vllm.utils.math import cdiv


def predictions() -> dict[str, list[int] | int]:
    """Your answers about the scene above, by these names, before you write the class.

    "ada's table", "bo's table", "ref_cnt of block 1 while both are there", "tokens that eve finds",
    "free queue when ada has left", "free queue when bo has left, too",
    "table of cy, who needs seven blocks", "tokens that ada finds when she comes again".
    Tables and queues are lists of block ids, from front to back.
    """
    raise NotImplementedError


class KVCacheManager:
    """Slots for requests. Same interface as `mini_vllm.core.kv_cache_manager.KVCacheManager`.

    Attributes:
        req_to_blocks: request id -> its block table, in order. Absent: it holds nothing.
        num_cached_block: request id -> how many blocks at the front of its table are published, found
            ones included; 0 if none is. Absent: it holds nothing.

    Source: `vllm/v1/core/kv_cache_manager.py:110 KVCacheManager`.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int,
        max_model_len: int,
        enable_caching: bool = True,
        block_pool: BlockPool | None = None,
    ) -> None:
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.block_pool = block_pool or BlockPool(num_gpu_blocks, enable_caching)
        self.empty_kv_cache_blocks = KVCacheBlocks(())
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        self.num_cached_block: dict[str, int] = {}
        self.prefix_cache_stats = PrefixCacheStats()

    def make_prefix_cache_stats(self) -> PrefixCacheStats:
        """Given: the scheduler asks what was looked up. Phase 02 counts nothing yet."""
        return self.prefix_cache_stats

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """What the cache already holds of the request: the blocks at its front, and their tokens.

        Whole blocks only, and never the whole request: the last token has to run, for its logits.
        Nothing is reserved. `request.block_hashes[i]` is the hash of its i-th block.
        `(self.empty_kv_cache_blocks, 0)` without caching, and for a request with
        `skip_reading_prefix_cache`.
        """
        raise NotImplementedError

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        full_sequence_must_fit: bool = False,
    ) -> KVCacheBlocks | None:
        """Slots for the next `num_new_tokens` tokens; the blocks newly taken, or None if they do not fit.

        1. How many blocks are missing? `num_missing_blocks`, below, for the tokens computed so far
           (`request.num_computed_tokens` and `num_new_computed_tokens`) and the new ones.
        2. Does it fit? A block that was found and is free leaves the free queue with the others, so
           it counts like a new one. With `full_sequence_must_fit` the same question is asked first
           for the request's whole sequence (`request.num_tokens`), of which this step may compute a part.
           None, and nothing has changed, if either answer is no.
        3. Hold on to what was found (`touch`) before new blocks are taken, which might take it.
        4. Take the missing blocks. The table is what the request held, what was found, what is new.
        5. With caching, publish the blocks that are full once these tokens are computed: those with
           tokens that the request has (`num_tokens`), from the first that is not published yet. What
           was found is published; `num_cached_block` keeps how many are.

        Args:
            request: `num_computed_tokens` of it are computed already.
            num_new_tokens: at least 1.
            num_new_computed_tokens: tokens in `new_computed_blocks`.
            new_computed_blocks: what `get_computed_blocks` found, for a request that holds nothing yet.
        """
        if num_new_tokens <= 0:
            raise ValueError(f"num_new_tokens must be greater than 0, got {num_new_tokens}")
        raise NotImplementedError

    def free(self, request: Request) -> None:
        """Give back the request's blocks, the tail first. Nothing happens if it holds none."""
        raise NotImplementedError

    # -- given ------------------------------------------------------------------------------------

    def num_missing_blocks(self, request: Request, num_tokens: int, num_hits: int) -> int:
        """Blocks to take so that the request's table reaches to `num_tokens` tokens, `num_hits` found.

        No slot is ever beyond `max_model_len`, though tokens may be planned beyond it.
        """
        wanted = cdiv(min(num_tokens, self.max_model_len), self.block_size)
        held = self.req_to_blocks.get(request.request_id, ())
        return max(0, wanted - len(held) - num_hits)

    @property
    def usage(self) -> float:
        return self.block_pool.get_usage()

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        return KVCacheBlocks(self.req_to_blocks.get(request_id, ()))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The request's block ids: a list for each KV cache group, here one."""
        return self.get_blocks(request_id).get_block_ids()

    def max_blocks_needed(self, request: Request) -> int:
        """The most blocks this request can come to hold."""
        last = min(request.num_prompt_tokens + request.max_tokens, self.max_model_len) - 1
        return cdiv(max(last, request.num_prompt_tokens), self.block_size)

    def evict_blocks(self, block_ids: set[int]) -> None:
        self.block_pool.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        return self.block_pool.reset_prefix_cache()

    def check_invariants(self) -> None:
        self.block_pool.check_invariants()
