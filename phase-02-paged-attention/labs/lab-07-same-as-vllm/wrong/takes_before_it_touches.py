"""New blocks are taken before the hits are touched.

Until it is touched a free hit stands in the queue like any other free block. If it stands at the
front it is handed out as a new block, and its content is gone: one block, twice in the same table.
Touch first, then take.

Refused by `test_your_blocks_are_vllms`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.block_pool import BlockPool
from mini_vllm.kv_cache_manager import KVCacheManager

solution = load_solution(__file__)


class Pool(BlockPool):
    def touch(self, blocks: Any) -> None:
        self.late = list(blocks)

    def get_new_blocks(self, num_blocks: int) -> Any:
        late, self.late = getattr(self, "late", []), []
        taken = super().get_new_blocks(num_blocks)
        super().touch(late)
        return taken


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
