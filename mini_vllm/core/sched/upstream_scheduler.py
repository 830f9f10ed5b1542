"""The schedulers as vLLM 0.22.1 has them, its two faults under `priority` included, and one with drafts.

What they are stands at the head of `scheduler.py`. To be injected by who wants to see them happen, as
`EngineParts(scheduler=UpstreamScheduler)`. Source:
`vllm/v1/core/sched/scheduler.py:457 in Scheduler.schedule`.
"""

from __future__ import annotations

from operator import attrgetter

from mini_vllm.core.request import Request
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.request_queue import SchedulingPolicy
from mini_vllm.core.sched.scheduler import Scheduler


class UpstreamScheduler(Scheduler):
    """`Scheduler`, but a victim's blocks stay published, and of equals the first of the running goes."""

    def _pop_victim(self) -> Request:
        if self.policy is SchedulingPolicy.FCFS:
            return self.running.pop()
        least_important = max(self.running, key=attrgetter("priority", "arrival_time"))
        self.running.remove(least_important)
        return least_important

    def _evict_uncomputed_blocks(self, request: Request) -> None:
        """Nothing: the hashes stay."""


class UpstreamAsyncScheduler(UpstreamScheduler, AsyncScheduler):
    """`AsyncScheduler` with the same two, and a third: a forced reset while drafts are in flight drops as
    many results as tokens are on their way, one of which alone is void
    (`vllm/v1/core/sched/scheduler.py:1923 in Scheduler.reset_prefix_cache`,
    `vllm/v1/core/sched/async_scheduler.py:40 in AsyncScheduler._update_request_with_output`)."""

    def _num_results_in_flight(self, request: Request) -> int:
        return request.num_output_placeholders
