"""Without chunks a prompt waits if all that it misses is more than the step has left.

The threshold cuts first. Compare what is asked for after that.

Refused by `test_without_chunks`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import RequestStatus

solution = load_solution(__file__)


class Scheduler(solution.Scheduler):  # type: ignore[name-defined,misc]
    def _schedule_waiting(self, step: Any) -> None:
        while (
            len(self.waiting)
            and len(self.running) < self.max_num_running_reqs
            and step.token_budget > 0
        ):
            request = self.waiting.peek_request()
            hits, num_hits = self.kv_cache_manager.get_computed_blocks(request)
            missing = request.num_tokens - num_hits
            if missing > step.token_budget and not self.config.enable_chunked_prefill:
                break
            num_new_tokens = min(
                missing, self.long_prefill_token_threshold or missing, step.token_budget
            )
            new_blocks = self.kv_cache_manager.allocate_slots(
                request,
                num_new_tokens,
                num_new_computed_tokens=num_hits,
                new_computed_blocks=hits,
                full_sequence_must_fit=self.config.scheduler_reserve_full_isl,
            )
            if new_blocks is None:
                break
            self.waiting.pop_request()
            self.running.append(request)
            if request.status is RequestStatus.PREEMPTED:
                step.scheduled_resumed_reqs.append(request)
            else:
                step.scheduled_new_reqs.append(request)
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = num_hits
            if request.num_output_tokens == 0:
                request.num_cached_tokens = num_hits
            whole_table = self.kv_cache_manager.get_blocks(request.request_id)
            step.req_to_new_blocks[request.request_id] = whole_table
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
