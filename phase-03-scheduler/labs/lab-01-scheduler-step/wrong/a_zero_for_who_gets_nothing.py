"""Whoever gets nothing is in the plan, with 0 tokens.

The plan is for those who compute something; a worker would prepare a row without tokens.

Refused by `test_the_budget_ends_in_the_middle`.
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
            step.req_to_new_blocks[request.request_id] = new_blocks
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens
        for request in self.running:
            step.num_scheduled_tokens.setdefault(request.request_id, 0)


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
