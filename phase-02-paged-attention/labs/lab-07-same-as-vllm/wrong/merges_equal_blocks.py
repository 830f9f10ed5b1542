"""A block that turns out to hold what another holds already is exchanged for that one.

It saves memory, and a block id changes under a request that is running: the worker has its copy of
the table and is told of new blocks only. So vLLM never deduplicates. Two requests that fill equal
blocks keep both; of later ones, who looks it up gets the one that was published first.

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
        for i in range(cached, full):
            same = self.get_cached_block(request.block_hashes[i])
            if same is None or not self.enable_caching:
                super().cache_full_blocks(request, blocks, i, i + 1)
            elif same is not blocks[i]:
                self.touch([same])
                self.free_blocks([blocks[i]])
                blocks[i] = same


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
