"""All of the victim's blocks lose their hashes.

Right texts, but the victim computes again what was there, and so does everybody who begins alike. What
earlier steps computed is sound: `num_computed_tokens` tells how far that goes.

Refused by `test_what_was_computed_stays_published`.
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
        manager.evict_blocks(set(manager.get_block_ids(request.request_id)))


solution.MendedScheduler = MendedScheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
