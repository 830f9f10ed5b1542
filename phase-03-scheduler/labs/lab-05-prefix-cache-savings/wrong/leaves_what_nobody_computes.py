"""A victim that was served already leaves its new blocks published.

Nobody computes them, and whoever finds them reads what an earlier holder left. Call
`_evict_uncomputed_blocks` before the blocks are freed.

Refused by `test_a_victim_takes_back_what_nobody_computes`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.Scheduler


class Scheduler(Right):
    def _schedule_running(self, step: Any) -> None:
        place = 0
        while place < len(self.running) and step.token_budget > 0:
            request = self.running[place]
            missing = request.num_tokens - request.num_computed_tokens
            num_new_tokens = min(
                missing, self.long_prefill_token_threshold or missing, step.token_budget
            )
            new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            while new_blocks is None:
                victim = self._pop_victim()
                if victim in step.scheduled_running_reqs:
                    step.scheduled_running_reqs.remove(victim)
                    step.token_budget += step.num_scheduled_tokens.pop(victim.request_id)
                    del step.req_to_new_blocks[victim.request_id]

                    place -= 1
                self._preempt_request(victim)
                step.preempted_reqs.append(victim)
                if victim is request:
                    return
                new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            step.scheduled_running_reqs.append(request)
            step.req_to_new_blocks[request.request_id] = new_blocks
            step.num_scheduled_tokens[request.request_id] = num_new_tokens
            step.token_budget -= num_new_tokens
            place += 1


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
