"""A prompt that is cached to its last token is taken from the cache entirely.

Then there is nothing left to compute, and no row whose logits could say the next token. The look-up
ends a token before the end, and in whole blocks: a duplicate that fills its blocks computes a whole
block anew.

Refused by `test_your_blocks_are_vllms`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.kv_cache_manager import KVCacheBlocks, KVCacheManager

solution = load_solution(__file__)


class Manager(KVCacheManager):
    def get_computed_blocks(self, request: Any) -> Any:
        hits: list[Any] = []
        for block_hash in request.block_hashes if self.enable_caching else ():
            block = self.block_pool.get_cached_block(block_hash)
            if block is None:
                break
            hits.append(block)
        return KVCacheBlocks(hits), len(hits) * self.block_size


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
