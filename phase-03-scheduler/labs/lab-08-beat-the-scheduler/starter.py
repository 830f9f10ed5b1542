"""Lab 03-08: beat the scheduler. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def policy(request: Any, now: float) -> Any:
    """The key of a waiting request: whoever has the smallest is tried first.

    Read it, and change nothing. These attributes requests have in `mini_vllm` and in vLLM:

    - `request_id`: in these workloads it begins with the user's name and a `-`.
    - `arrival_time`: seconds, on the clock of `now`.
    - `num_prompt_tokens`, and `max_tokens`: the most that it will be given.
    - `num_output_tokens`: given so far; above 0 while waiting only after a preemption.
    - `num_preemptions`: how often it has lost its blocks.
    - `priority`: lower is more important. Who pays has 0 here, and so has whoever claims to.

    Args:
        now: seconds, when the step is planned. The same for all who are compared.

    Returns anything that can be compared with what it returns for other requests, and is the same each
    time that it is asked the same.
    """
    raise NotImplementedError


def reorder(queue: Any, policy: Callable[[Any, float], Any], now: float) -> None:
    """Put a waiting queue in the policy's order, in place. Equals stay as they were.

    The queue is FCFS's, of either engine. Both have `len(queue)`, `queue.pop_request()`, which takes the
    head out and returns it, and `queue.add_request(request)`, which puts a request at the tail.
    """
    requests = [queue.pop_request() for _ in range(len(queue))]
    for request in sorted(requests, key=lambda request: policy(request, now)):
        queue.add_request(request)


def make_scheduler(base: type, policy: Callable[[Any, float], Any] = policy) -> type:
    """A subclass of `base`, a scheduler of either engine, that tries the waiting in the policy's order.

    - Its class attribute `clock`, called without arguments, says the time: `time.time` by default, which
      is what arrival times are read from. The simulator and the tests set another on the instance, so
      ask `self.clock()`; and wrap the default, `staticmethod(time.time)`, as no method is wanted.
    - `__init__` takes what `base` takes. If `is_async(self)` and `base` does not plan ahead, ValueError
      names `base`. One that does is called `AsyncScheduler`, or has a class of this name among its
      bases (`base.__mro__`). An `AsyncScheduler` may be used synchronously.
    - `schedule` takes what `base.schedule` takes. It reorders `self.waiting`, then does as `base` does.
    """
    raise NotImplementedError


def is_async(scheduler: Any) -> bool:
    """Given: whether a scheduler, `mini_vllm`'s or vLLM's, was told to schedule asynchronously."""
    config = getattr(scheduler, "vllm_config", None)
    return bool((config.scheduler_config if config else scheduler.config).async_scheduling)
