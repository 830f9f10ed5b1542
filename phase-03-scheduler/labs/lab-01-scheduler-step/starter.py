"""Lab 03-01: one step of the scheduler. Your work: every NotImplementedError."""

from __future__ import annotations

from typing import Any

from mini_vllm.core.request import RequestStatus
from mini_vllm.core.sched import scheduler as given


def predictions() -> dict[str, Any]:
    """Your guesses at the four questions of the README, under the names that stand there."""
    raise NotImplementedError


def clamp(num_new_tokens: int, threshold: int, token_budget: int) -> int:
    """How many of the missing tokens a request gets.

    Args:
        num_new_tokens: how many are missing, at least 1.
        threshold: no request gets more in one step; 0 means no such limit.
        token_budget: what is left of the step, at least 1.
    """
    raise NotImplementedError


class Scheduler(given.Scheduler):
    """The engine's scheduler with your two loops.

    What comes from the class above, and what you need of it:

    - `running: list[Request]`, in the order of admission, and `waiting`, a queue with `len` and
      `peek_request()`, which returns the head and leaves it there.
    - `max_num_running_reqs`, `long_prefill_token_threshold`, `config.scheduler_reserve_full_isl`.
    - `kv_cache_manager.allocate_slots(request, num_new_tokens, full_sequence_must_fit=...)`: the blocks
      that this takes, or None if they are not there, and then nothing has changed.
    - `schedule()` calls your two methods with a fresh `step`, makes the plan from it, and then moves
      `num_computed_tokens` on. You do not move it.

    Of the `step` you read `token_budget`, what is left of it, the whole budget at first. `_serve` and
    `_admit` write into it. A request has `num_tokens` (prompt and
    answer so far) and `num_computed_tokens`.
    """

    def _serve(self, step: Any, request: Any, num_new_tokens: int, new_blocks: Any) -> None:
        """Note in the step that a running request gets these tokens and blocks (given)."""
        step.scheduled_running_reqs.append(request)
        self._note(step, request, num_new_tokens, new_blocks)

    def _admit(self, step: Any, num_new_tokens: int, new_blocks: Any) -> None:
        """Move the head of the queue to the end of `running`, and note it in the step (given)."""
        request = self.waiting.pop_request()
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_cached_tokens = 0
        step.scheduled_new_reqs.append(request)
        self._note(step, request, num_new_tokens, new_blocks)

    def _note(self, step: Any, request: Any, num_new_tokens: int, new_blocks: Any) -> None:
        """What the plan needs of everybody in it; the tokens come off the budget (given)."""
        step.req_to_new_blocks[request.request_id] = new_blocks
        step.num_scheduled_tokens[request.request_id] = num_new_tokens
        step.token_budget -= num_new_tokens

    def _schedule_running(self, step: Any) -> None:
        """Serve those who run, in order, as long as there is budget.

        Each gets what is missing, clamped: ask for the slots, then `_serve`. If there are no blocks for
        somebody, the loop ends: those behind get nothing either. (To take blocks from others is lab 03-04.)
        `schedule` calls the other loop all the same.
        """
        raise NotImplementedError

    def _schedule_waiting(self, step: Any) -> None:
        """Admit from the head of the queue, as long as there is somebody, a seat and budget.

        All tokens of a newcomer are missing. (To find some in the cache is lab 03-05.) Its whole
        sequence must fit into the pool if `scheduler_reserve_full_isl` says so, also where this step
        computes a piece only. Once the slots are there, `_admit`. The first who does not fit ends the
        loop: nobody passes.
        """
        raise NotImplementedError
