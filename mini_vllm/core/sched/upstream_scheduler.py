"""The schedulers with faults of vLLM 0.22.1, which `Scheduler` and `AsyncScheduler` do not have.

Two occur under `priority`, with synchronous and asynchronous scheduling alike:

* A victim may have been scheduled earlier in the same step. The blocks that it was to fill are published
  by then, but will not be computed. vLLM leaves their hashes in the index: the victim comes back, hits them,
  and attends over what an earlier holder left there, perhaps under another `cache_salt`. `Scheduler` takes
  the hashes out (`_evict_uncomputed_blocks`).
* Requests of equal priority and arrival time, such as the children of one request with `n` > 1, can
  preempt each other for ever. In `Scheduler` the request id decides, as it does in the waiting queue.

The others need a forced reset and plans in flight: see `UpstreamAsyncScheduler`. To watch the faults
happen, inject one of these classes, as in `EngineParts(scheduler=UpstreamScheduler)`. Source:
`vllm/v1/core/sched/scheduler.py:457 in Scheduler.schedule`.
"""

from __future__ import annotations

from operator import attrgetter

from mini_vllm.core.request import Request
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
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
    """`AsyncScheduler` with the same two faults, and those of a forced reset of the cache.

    Of what is in flight then, one result per token is dropped, although with drafts one result has several
    tokens (`vllm/v1/core/sched/scheduler.py:1923 in Scheduler.reset_prefix_cache`,
    `vllm/v1/core/sched/async_scheduler.py:40 in AsyncScheduler._update_request_with_output`). A second reset
    forgets what is still to be dropped by the first. And before a result is dropped, the drafts that it
    rejects are taken back from a request that has begun anew
    (`vllm/v1/core/sched/scheduler.py:1371 in Scheduler.update_from_output`).
    """

    def _discard_latest_async_tokens(self, request: Request) -> None:
        self.async_tokens_to_discard.pop(request.request_id, None)
        super()._discard_latest_async_tokens(request)

    def _num_results_in_flight(self, request: Request) -> int:
        return request.num_output_placeholders

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """As `AsyncScheduler.update_from_output`, but what a void result rejects is taken back first."""
        for req_id in self.async_tokens_to_discard:
            request = self.requests.get(req_id)
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(req_id)
            if request is None or not drafts:
                continue
            index = model_runner_output.req_id_to_index[req_id]
            new_token_ids = model_runner_output.sampled_token_ids[index]
            if new_token_ids:
                self._take_back_rejected(request, len(drafts), len(new_token_ids) - 1)
        return super().update_from_output(scheduler_output, model_runner_output)
