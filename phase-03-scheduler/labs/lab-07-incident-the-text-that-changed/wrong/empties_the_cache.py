"""The whole cache is emptied, to be safe.

Everybody pays: who holds blocks keeps them, but nobody who begins alike finds them any more.

Refused by `test_others_keep_their_hits`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import Request
from mini_vllm.upstream_scheduler import UpstreamScheduler

solution = load_solution(__file__)


class MendedScheduler(UpstreamScheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        pool = self.kv_cache_manager.block_pool
        pool.evict_blocks({block.block_id for block in pool.blocks})


solution.MendedScheduler = MendedScheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
