"""Lab 03-01: one step of the scheduler. Your work: every NotImplementedError."""

from __future__ import annotations

from typing import Any

from mini_vllm.core.request import RequestStatus
from mini_vllm.core.sched import scheduler as given


def predictions() -> dict[str, Any]:
    """Your guesses for the README's four questions, under the names that it uses."""
    raise NotImplementedError


def clamp(num_new_tokens: int, threshold: int, token_budget: int) -> int:
    """How many of the tokens that it lacks a request gets.

    Args:
        num_new_tokens: how many it lacks, at least 1.
        threshold: no request gets more in one step; 0 means no such limit.
        token_budget: what is left of the step's budget, at least 1.
    """
    raise NotImplementedError


class Scheduler(given.Scheduler):
    """The engine's scheduler with your two loops.

    From the class above you need:

    - `running: list[Request]`, in order of admission, and `waiting`, a queue with `len` and
      `peek_request()`, which returns the head and leaves it there.
    - `max_num_running_reqs`, `long_prefill_token_threshold`, `config.scheduler_reserve_full_isl`.
    - `kv_cache_manager.allocate_slots(request, num_new_tokens, full_sequence_must_fit=...)`: returns the
      blocks that this takes. If there are not enough, it returns None, and nothing has changed.
    - `schedule()` calls your two methods with a fresh `step`, makes the `SchedulerOutput` from it, and then
      advances `num_computed_tokens`. You do not advance it.

    From the `step` you read `token_budget`: what is left of the budget, at first all of it. `_serve` and
    `_admit` write into the step. A request has `num_tokens` (prompt and answer so far) and
    `num_computed_tokens`.
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
        """Note what the step needs to know of each request, and take its tokens off the budget (given)."""
        step.req_to_new_blocks[request.request_id] = new_blocks
        step.num_scheduled_tokens[request.request_id] = num_new_tokens
        step.token_budget -= num_new_tokens

    def _schedule_running(self, step: Any) -> None:
        """Serve the running requests, in order, as long as there is budget.

        Each gets what it lacks, clamped: ask for the slots, then `_serve`. If there are no blocks for a
        request, the loop ends: those behind it get nothing either. (Taking blocks from others is lab 03-04.)
        `schedule` calls the other loop all the same.
        """
        raise NotImplementedError

    def _schedule_waiting(self, step: Any) -> None:
        """Admit from the head of the queue, as long as a request waits and there are a batch slot and budget.

        A newcomer lacks all of its tokens. (Finding some in the cache is lab 03-05.) Its whole sequence
        must fit into the pool if `scheduler_reserve_full_isl` says so, even if this step computes only a
        chunk. Once the KV slots are there, `_admit`. The first request that does not fit ends the loop:
        nobody passes.
        """
        raise NotImplementedError
