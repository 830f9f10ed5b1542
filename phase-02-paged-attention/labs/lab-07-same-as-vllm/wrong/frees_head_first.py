"""The blocks of a request are freed from the head of its table.

The head then stands in front of the tail in the free queue and is evicted first, and with it goes
what others can share: of a chain whose first block is gone nothing is found. vLLM frees the tail
first: reverse the table.

Refused by `test_your_blocks_are_vllms`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.kv_cache_manager import KVCacheManager

solution = load_solution(__file__)


class Manager(KVCacheManager):
    def free(self, request: Any) -> None:
        blocks = self.req_to_blocks.pop(request.request_id, None)
        self.num_cached_block.pop(request.request_id, None)
        if blocks:
            self.block_pool.free_blocks(blocks)


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
