"""Lab 03-08: beat the scheduler. One way to do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TTFT_S = 0.5
PATIENCE_S = 5.0
"""Whoever has waited so long is next, whatever else is true of it."""
STEP_IN_TOKENS = 5
"""A token of the answer takes a place in a step, and a step takes about as long as so many of the prompt."""


def policy(request: Any, now: float) -> Any:
    """Who can still be in time comes first, and of those the shortest; who is late waits for a lull."""
    waited = now - request.arrival_time
    work = request.num_prompt_tokens + STEP_IN_TOKENS * request.max_tokens
    if waited > PATIENCE_S:
        return (0, request.arrival_time)
    if waited <= TTFT_S or request.num_output_tokens:
        return (1, work)
    return (2, work)


def reorder(queue: Any, policy: Callable[[Any, float], Any], now: float) -> None:
    """Put a waiting queue in the policy's order, in place. Equals stay as they were.

    The queue is FCFS's, of either engine. Both have `len(queue)`, `queue.pop_request()`, which takes the
    head out and returns it, and `queue.add_request(request)`, which puts a request at the tail.
    """
    requests = [queue.pop_request() for _ in range(len(queue))]
    for request in sorted(requests, key=lambda request: policy(request, now)):
        queue.add_request(request)


def make_scheduler(base: type, policy: Callable[[Any, float], Any] = policy) -> type:
    """`base`, with the waiting in another order."""

    class PolicyScheduler(base):  # type: ignore[misc]
        clock: Callable[[], float] = staticmethod(time.time)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            plans_ahead = any(one.__name__ == "AsyncScheduler" for one in base.__mro__)
            if is_async(self) and not plans_ahead:
                raise ValueError(
                    f"async_scheduling is on, so the base must be AsyncScheduler, got {base.__name__}"
                )

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            reorder(self.waiting, policy, self.clock())
            return super().schedule(*args, **kwargs)

    return PolicyScheduler


def is_async(scheduler: Any) -> bool:
    """Given: whether a scheduler, `mini_vllm`'s or vLLM's, was told to schedule asynchronously."""
    config = getattr(scheduler, "vllm_config", None)
    return bool((config.scheduler_config if config else scheduler.config).async_scheduling)
