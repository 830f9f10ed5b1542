"""Blocks are published when their tokens have been computed, not when they are given out.

That sounds safe, and with synchronous scheduling it is a step too late: a request that is admitted
in the same step, or looked up right after a chunk, finds nothing. vLLM publishes in
`allocate_slots` what the step will have filled.

Refused by `test_your_blocks_are_vllms`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.block_pool import BlockPool
from mini_vllm.kv_cache_manager import KVCacheManager

solution = load_solution(__file__)


class Pool(BlockPool):
    def cache_full_blocks(self, request: Any, blocks: Any, cached: int, full: int) -> None:
        self.full = max(cached, min(full, self.computed // self.size))
        super().cache_full_blocks(request, blocks, cached, self.full)


class Manager(KVCacheManager):
    def __init__(self, num_blocks: int, size: int, length: int, caching: bool) -> None:
        pool = Pool(num_blocks, caching)
        pool.size = size
        super().__init__(num_blocks, size, length, caching, pool)

    def allocate_slots(
        self, request: Any, num_new: int, num_hits: int = 0, *rest: Any, **more: Any
    ) -> Any:
        num_hits = more.pop("num_new_computed_tokens", num_hits)
        self.block_pool.computed = request.num_computed_tokens + num_hits
        self.block_pool.full = None
        blocks = super().allocate_slots(request, num_new, num_hits, *rest, **more)
        if self.block_pool.full is not None:
            self.num_cached_block[request.request_id] = self.block_pool.full
        return blocks


def make_manager(config: Any) -> Any:
    return Manager(
        config["num_blocks"],
        config["block_size"],
        config["max_model_len"],
        config["enable_prefix_caching"],
    )


solution.make_manager = make_manager


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
