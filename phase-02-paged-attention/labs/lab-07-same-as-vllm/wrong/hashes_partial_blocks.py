"""The last block is published before it is full.

Its holder goes on writing into it, and who finds it by the hash of its first tokens shares a block
that another request writes to. Only a full block gets a hash, because only a full block is never
written again: round down.

Refused by `test_your_blocks_are_vllms`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.kv_cache_manager import KVCacheBlocks, KVCacheManager

solution = load_solution(__file__)


class Manager(KVCacheManager):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.partial: dict[Any, Any] = {}

    def _key(self, request: Any, num_tokens: int) -> Any:
        return tuple(request.all_token_ids[:num_tokens])

    def get_computed_blocks(self, request: Any) -> Any:
        found, num_tokens = super().get_computed_blocks(request)
        last = request.num_tokens - 1
        block = self.partial.get(self._key(request, last)) if self.enable_caching else None
        if block is None or last // self.block_size != len(found.blocks) or block in found.blocks:
            return found, num_tokens
        return KVCacheBlocks([*found.blocks, block]), last

    def allocate_slots(
        self, request: Any, num_new: int, num_hits: int = 0, *rest: Any, **more: Any
    ) -> Any:
        num_hits = more.pop("num_new_computed_tokens", num_hits)
        before = self.num_cached_block.get(request.request_id, 0)
        blocks = super().allocate_slots(request, num_new, num_hits, *rest, **more)
        table = self.req_to_blocks.get(request.request_id, [])
        end = min(request.num_computed_tokens + num_hits + num_new, request.num_tokens)
        if blocks is not None and end % self.block_size and before <= len(table):
            for key in [k for k, block in self.partial.items() if block is table[-1]]:
                del self.partial[key]
            self.partial[self._key(request, end)] = table[end // self.block_size]
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
