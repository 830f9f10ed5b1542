"""One block less is thought to break the chain.

A lookup stops at the first miss, so what is behind it seems to be out of reach. But another request may have
computed that first block too, and then the lookup gets past it.

Refused by `test_nobody_reads_what_nobody_wrote`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import Request
from mini_vllm.upstream_scheduler import UpstreamScheduler

solution = load_solution(__file__)


class MendedScheduler(UpstreamScheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        manager = self.kv_cache_manager
        first = request.num_computed_tokens // self.config.block_size
        manager.evict_blocks(set(manager.get_block_ids(request.request_id)[first : first + 1]))


solution.MendedScheduler = MendedScheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
