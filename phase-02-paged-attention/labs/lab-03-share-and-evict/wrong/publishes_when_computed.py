"""Blocks are published a step later, when their tokens have been computed.

It sounds safer, and is safe. But whoever is admitted in the same step finds nothing and computes the
same prompt a second time, and eight answers to one question cost eight prompts. All writes of a step
come before its reads, so publish when you grant (I5).

Refused by `test_full_blocks_can_be_found_as_soon_as_they_are_granted`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.KVCacheManager


class KVCacheManager(Right):
    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        full_sequence_must_fit: bool = False,
    ) -> Any:
        caching, self.enable_caching = self.enable_caching, False
        got = super().allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens,
            new_computed_blocks,
            full_sequence_must_fit,
        )
        self.enable_caching = caching
        if got is not None and caching:
            hits = 0 if new_computed_blocks is None else len(new_computed_blocks.blocks)
            name = request.request_id
            done = self.num_cached_block.get(name, 0) + hits
            full = (request.num_computed_tokens + num_new_computed_tokens) // self.block_size
            self.block_pool.cache_full_blocks(request, self.req_to_blocks[name], done, full)
            self.num_cached_block[name] = max(done, full)
        return got


solution.KVCacheManager = KVCacheManager


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
