"""Whoever runs gets one token.

A request in the middle of its prompt runs too, and is behind by more. What is missing is tokens less
computed.

Refused by `test_whoever_is_behind_gets_what_is_missing`.
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
            num_new_tokens = 1
            new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            if new_blocks is None:
                break
            step.scheduled_running_reqs.append(request)
            step.req_to_new_blocks[request.request_id] = new_blocks
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
