"""Every slot that was granted counts as a token.

Slots can be granted ahead of the tokens that will fill them. A block of seven tokens and a slot is not
full, whatever was granted: bound it by `request.num_tokens`.

Refused by `test_a_block_is_published_by_tokens_that_exist`.
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
        got = super().allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens,
            new_computed_blocks,
            full_sequence_must_fit,
        )
        granted = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        if got is not None and self.enable_caching and granted > request.num_tokens:
            name = request.request_id
            done, full = self.num_cached_block[name], granted // self.block_size
            for i in range(done, min(full, len(self.req_to_blocks[name]))):
                self.req_to_blocks[name][i].block_hash = b"early"
                self.block_pool.cached_block_hash_to_block.insert(
                    b"early", self.req_to_blocks[name][i]
                )
        return got


solution.KVCacheManager = KVCacheManager


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
