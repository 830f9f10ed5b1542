"""A block that was never computed keeps its hash.

So it is found, as at the pin. One way to get there is to look too late: after `_preempt_request` the
table is empty and the counter is 0, and there is nothing left to un-publish.

Refused by `test_gil_is_told_what_he_is_told_alone`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import Request
from mini_vllm.upstream_scheduler import UpstreamScheduler

solution = load_solution(__file__)


class MendedScheduler(UpstreamScheduler):
    def _preempt_request(self, request: Request) -> None:
        super()._preempt_request(request)
        manager = self.kv_cache_manager
        first = request.num_computed_tokens // self.config.block_size
        manager.evict_blocks(set(manager.get_block_ids(request.request_id)[first:]))


solution.MendedScheduler = MendedScheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
