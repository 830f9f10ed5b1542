"""Lab 03-01: one step of the scheduler. Your work: every NotImplementedError."""

from __future__ import annotations

from typing import Any

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

    - `running: list[Request]`, in the order of admission, and `waiting`, a queue with
      `peek_request()`, `pop_request()` and `len`.
    - `max_num_running_reqs`, `long_prefill_token_threshold`, `config.scheduler_reserve_full_isl`.
    - `kv_cache_manager.allocate_slots(request, num_new_tokens, full_sequence_must_fit=...)`: the blocks
      that this takes, or None if they are not there, and then nothing has changed.
    - `schedule()` calls your two methods with a fresh `step`, makes the plan from it, and then moves
      `num_computed_tokens` on. You do not move it.

    A `step` has

    - `token_budget`: what is left of the step, the whole budget at first;
    - `num_scheduled_tokens: dict[str, int]`, by request id, in the order in which you serve them;
    - `req_to_new_blocks: dict[str, KVCacheBlocks]`, what `allocate_slots` gave, by request id;
    - `scheduled_running_reqs` and `scheduled_new_reqs`, lists of requests: served by the first loop,
      admitted by the second.

    A request has `request_id`, `status`, `num_tokens` and `num_computed_tokens`.
    """

    def _schedule_running(self, step: Any) -> None:
        """Serve those who run, in order, as long as there is budget.

        Each gets what is missing, clamped. If there are no blocks for somebody, the loop ends: those
        behind get nothing either. (To take blocks from others is lab 03-04.)
        """
        raise NotImplementedError

    def _schedule_waiting(self, step: Any) -> None:
        """Admit from the head of the queue, as long as there is somebody, a seat and budget.

        All tokens of a newcomer are missing. (To find some in the cache is lab 03-05.) Its whole
        sequence must fit into the pool if `scheduler_reserve_full_isl` says so, also where this step
        computes a piece only. The first who does not fit ends the loop: nobody passes.

        Whoever is admitted leaves the queue for the end of `running`, has the status
        `RequestStatus.RUNNING` (`mini_vllm.core.request`) and `num_cached_tokens` 0.
        """
        raise NotImplementedError
