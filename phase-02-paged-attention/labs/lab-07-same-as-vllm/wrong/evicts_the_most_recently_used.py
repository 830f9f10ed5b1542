"""New blocks are taken from the back of the free queue.

There stand the blocks that were freed last, and what they hold is the likeliest to be asked for
again. vLLM takes from the front, where nobody has come for a block the longest.

Refused by `test_your_blocks_are_vllms`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.block_pool import BlockPool
from mini_vllm.kv_cache_manager import KVCacheManager

solution = load_solution(__file__)


class Pool(BlockPool):
    def get_new_blocks(self, num_blocks: int) -> Any:
        queue = self.free_block_queue
        last = queue.get_all_free_blocks()[::-1][:num_blocks]
        for block in last:
            queue.remove(block)
            self._maybe_evict_cached_block(block)
            block.ref_cnt = 1
        return last


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
