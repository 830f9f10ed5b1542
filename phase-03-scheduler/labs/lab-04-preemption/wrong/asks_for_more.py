"""Whoever asks again asks for more, because a victim has given tokens back.

vLLM cuts the piece once, before the first try. What comes back in between is for those behind.

Refused by `test_the_asker_asks_for_the_same`.
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
            while True:
                num_new_tokens = solution.clamp(
                    request.num_tokens - request.num_computed_tokens,
                    self.long_prefill_token_threshold,
                    step.token_budget,
                )
                new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
                if new_blocks is not None:
                    break
                preempted_req = self._pop_victim()
                if preempted_req in step.scheduled_running_reqs:
                    step.scheduled_running_reqs.remove(preempted_req)
                    step.req_to_new_blocks.pop(preempted_req.request_id)
                    step.token_budget += step.num_scheduled_tokens.pop(preempted_req.request_id)
                    req_index -= 1
                self._preempt_request(preempted_req)
                step.preempted_reqs.append(preempted_req)
                if preempted_req is request:
                    return
            step.scheduled_running_reqs.append(request)
            step.req_to_new_blocks[request.request_id] = new_blocks
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens
            req_index += 1


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
