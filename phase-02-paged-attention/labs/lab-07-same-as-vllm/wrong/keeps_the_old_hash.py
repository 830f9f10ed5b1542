"""A block that is given to somebody else can still be found by what it held before.

Whoever finds it shares a block that is being overwritten. When a block leaves the front of the free
queue to be filled anew, it goes out of the index and its hash is reset: that is what eviction is.

Refused by `test_your_blocks_are_vllms`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.block_pool import BlockPool
from mini_vllm.kv_cache_manager import KVCacheManager

solution = load_solution(__file__)


class Pool(BlockPool):
    def _maybe_evict_cached_block(self, block: Any) -> None:
        block.reset_hash()


class Manager(KVCacheManager):
    def __init__(self, num_blocks: int, size: int, length: int, caching: bool) -> None:
        super().__init__(num_blocks, size, length, caching, Pool(num_blocks, caching))


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
