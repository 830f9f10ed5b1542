"""Hits are counted as if they cost nothing.

A hit that somebody holds is free of charge. One that nobody holds stands in the free queue, and
touching it takes it out: then fewer are left for the new blocks than were counted. Add the hits
whose `ref_cnt` is 0 to what is needed.

Refused by `test_your_blocks_are_vllms`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.block_pool import BlockPool
from mini_vllm.kv_cache_manager import KVCacheManager

solution = load_solution(__file__)


class Pool(BlockPool):
    hidden = 0

    def get_num_free_blocks(self) -> int:
        return super().get_num_free_blocks() + self.hidden


class Manager(KVCacheManager):
    def __init__(self, num_blocks: int, size: int, length: int, caching: bool) -> None:
        super().__init__(num_blocks, size, length, caching, Pool(num_blocks, caching))

    def allocate_slots(self, request: Any, *args: Any, **more: Any) -> Any:
        hits = more.get("new_computed_blocks")
        free = [block for block in (hits.blocks if hits else ()) if block.ref_cnt == 0]
        self.block_pool.hidden = len(free)
        try:
            return super().allocate_slots(request, *args, **more)
        finally:
            self.block_pool.hidden = 0


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
