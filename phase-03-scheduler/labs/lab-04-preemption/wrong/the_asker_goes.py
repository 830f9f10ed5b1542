"""Whoever finds no blocks loses his own.

Then the first of the list can starve while others behind it sit on blocks, and nobody gets on. Ask
`_pop_victim` who goes.

Refused by `test_the_last_of_the_running_loses`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class Scheduler(solution.Scheduler):  # type: ignore[name-defined,misc]
    def _schedule_running(self, step: Any) -> None:
        req_index = 0
        while step.token_budget > 0 and req_index < len(self.running):
            request = self.running[req_index]
            num_new_tokens = solution.clamp(
                request.num_tokens - request.num_computed_tokens,
                self.long_prefill_token_threshold,
                step.token_budget,
            )
            new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            while new_blocks is None:
                preempted_req = request
                self.running.remove(request)
                if preempted_req in step.scheduled_running_reqs:
                    step.scheduled_running_reqs.remove(preempted_req)
                    step.req_to_new_blocks.pop(preempted_req.request_id)
                    step.token_budget += step.num_scheduled_tokens.pop(preempted_req.request_id)
                    req_index -= 1
                self._preempt_request(preempted_req)
                step.preempted_reqs.append(preempted_req)
                if preempted_req is request:
                    return
                new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            step.scheduled_running_reqs.append(request)
            step.req_to_new_blocks[request.request_id] = new_blocks
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens
            req_index += 1


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
