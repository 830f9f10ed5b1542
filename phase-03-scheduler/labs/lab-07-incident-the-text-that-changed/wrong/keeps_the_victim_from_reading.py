"""The victim is told not to read the cache when it comes back.

Then it is the victim who is spared, and nobody else: the blocks are still published, and the next one
who asks the same reads them.

Refused by `test_others_do_not_find_it_either`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import Request
from mini_vllm.upstream_scheduler import UpstreamScheduler

solution = load_solution(__file__)


class MendedScheduler(UpstreamScheduler):
    def _evict_uncomputed_blocks(self, request: Request) -> None:
        request.skip_reading_prefix_cache = True


solution.MendedScheduler = MendedScheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
