"""The schedulers with three faults of vLLM 0.22.1, which `Scheduler` and `AsyncScheduler` do not have.

Two occur under `priority`, with synchronous and asynchronous scheduling alike:

* A victim may have been scheduled earlier in the same step. The blocks that it was to fill are published
  by then, but will not be computed. vLLM leaves their hashes in the index: the victim comes back, hits them,
  and attends over what an earlier holder left there, perhaps under another `cache_salt`. `Scheduler` takes
  the hashes out (`_evict_uncomputed_blocks`).
* Requests of equal priority and arrival time, such as the children of one request with `n` > 1, can
  preempt each other for ever. In `Scheduler` the request id decides, as it does in the waiting queue.

The third needs drafts in flight: see `UpstreamAsyncScheduler`. To watch the faults happen, inject one of
these classes, as in `EngineParts(scheduler=UpstreamScheduler)`. Source:
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
    """`AsyncScheduler` with the same two faults, and a third: a forced reset of the cache while drafts are in
    flight drops one result per token in flight, although only one result is void
    (`vllm/v1/core/sched/scheduler.py:1923 in Scheduler.reset_prefix_cache`,
    `vllm/v1/core/sched/async_scheduler.py:40 in AsyncScheduler._update_request_with_output`)."""

    def _num_results_in_flight(self, request: Request) -> int:
        return request.num_output_placeholders
