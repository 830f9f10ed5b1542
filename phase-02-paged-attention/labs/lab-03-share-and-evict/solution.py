"""Lab 02-03: what requests share, what they own, and who is evicted first. The reference solution."""

from __future__ import annotations

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.kv_cache_utils import KVCacheBlock
from mini_vllm.core.request import Request
from mini_vllm.core.stats import PrefixCacheStats
from mini_vllm.utils.math import cdiv


def predictions() -> dict[str, list[int] | int]:
    """Your answers about the scene, by these names, before you write the class.

    "ada's table", "bo's table", "ref_cnt of block 1 while both are there", "tokens that eve finds",
    "free queue when ada has left", "free queue when bo has left, too",
    "table of cy, who needs seven blocks", "tokens that ada finds when she comes again".
    Tables and queues are lists of block ids, from front to back.
    """
    return {
        "ada's table": [1, 2, 3],
        "bo's table": [1, 2, 4],
        "ref_cnt of block 1 while both are there": 2,
        "tokens that eve finds": 0,
        "free queue when ada has left": [5, 6, 7, 8, 9, 3],
        "free queue when bo has left, too": [5, 6, 7, 8, 9, 3, 4, 2, 1],
        "table of cy, who needs seven blocks": [5, 6, 7, 8, 9, 3, 4],
        "tokens that ada finds when she comes again": 8,
    }


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
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0
        hits: list[KVCacheBlock] = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:
            block = self.block_pool.get_cached_block(block_hash)
            if block is None:
                break
            hits.append(block)
        return KVCacheBlocks(hits), len(hits) * self.block_size

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
        blocks = self.req_to_blocks.get(request.request_id, [])
        hits = [] if new_computed_blocks is None else list(new_computed_blocks.blocks)
        num_free_hits = sum(block.ref_cnt == 0 for block in hits)
        computed = request.num_computed_tokens + num_new_computed_tokens
        free = self.block_pool.get_num_free_blocks()
        for_all = self.num_missing_blocks(request, request.num_tokens, len(hits))
        if full_sequence_must_fit and for_all + num_free_hits > free:
            return None
        num_new_blocks = self.num_missing_blocks(request, computed + num_new_tokens, len(hits))
        if num_new_blocks + num_free_hits > free:
            return None

        self.block_pool.touch(hits)
        new_blocks = self.block_pool.get_new_blocks(num_new_blocks)
        self.req_to_blocks[request.request_id] = blocks = [*blocks, *hits, *new_blocks]
        if self.enable_caching:
            published = self.num_cached_block.get(request.request_id, 0) + len(hits)
            full = min(computed + num_new_tokens, request.num_tokens) // self.block_size
            if full > published:
                self.block_pool.cache_full_blocks(request, blocks, published, full)
            self.num_cached_block[request.request_id] = max(full, published)
        return KVCacheBlocks(new_blocks)

    def free(self, request: Request) -> None:
        """Give back the request's blocks, the tail first. Nothing happens if it holds none."""
        blocks = self.req_to_blocks.pop(request.request_id, [])
        self.num_cached_block.pop(request.request_id, None)
        self.block_pool.free_blocks(reversed(blocks))

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
