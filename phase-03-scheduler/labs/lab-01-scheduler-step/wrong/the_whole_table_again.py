"""The plan names the whole table of whoever runs.

The worker has the table already, and adds what is new to it: put in what `allocate_slots` gave.

Refused by `test_blocks_for_whoever_runs`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.Scheduler


class Scheduler(Right):
    def _schedule_running(self, step: Any) -> None:
        for request in self.running:
            if step.token_budget == 0:
                break
            num_new_tokens = solution.clamp(
                request.num_tokens - request.num_computed_tokens,
                self.long_prefill_token_threshold,
                step.token_budget,
            )
            new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            if new_blocks is None:
                break
            step.scheduled_running_reqs.append(request)
            step.req_to_new_blocks[request.request_id] = self.kv_cache_manager.get_blocks(
                request.request_id
            )
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
