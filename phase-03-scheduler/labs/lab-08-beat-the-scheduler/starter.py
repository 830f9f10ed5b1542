"""Lab 03-08: beat the scheduler. Your work: every NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def policy(request: Any, now: float) -> Any:
    """The key of a waiting request: the request with the smallest key is tried first.

    Read the request, and change nothing. In `mini_vllm` and in vLLM requests have these attributes:

    - `request_id`: in these workloads it begins with the user's name and a `-`.
    - `arrival_time`: seconds, on the clock of `now`.
    - `num_prompt_tokens`, and `max_tokens`: the most answer tokens that it will be given.
    - `num_output_tokens`: answer tokens so far; above 0 while waiting only after a preemption.
    - `num_preemptions`: how often it has lost its blocks.
    - `priority`: lower is more important. Here users who pay have 0, and so do users who claim to.

    Args:
        now: the time in seconds at which the step is scheduled. The same for all requests compared.

    Returns anything that can be compared with what it returns for other requests. For the same arguments it
    always returns the same.
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
    """A subclass of `base`, a scheduler of either engine, that tries waiting requests in the policy's order.

    - Its class attribute `clock`, called without arguments, returns the time: `time.time` by default, from
      which arrival times are read. The simulator and the tests set another one on the instance, so call
      `self.clock()`. Wrap the default, `staticmethod(time.time)`, because it must not become a method.
    - `__init__` takes what `base` takes. If `is_async(self)` and `base` does not schedule ahead, it raises
      ValueError with the name of `base`. A class that schedules ahead is called `AsyncScheduler`, or has a
      class of this name among its bases (`base.__mro__`). An `AsyncScheduler` may be used synchronously.
    - `schedule` takes what `base.schedule` takes. It reorders `self.waiting`, then does as `base` does.
    """
    raise NotImplementedError


def is_async(scheduler: Any) -> bool:
    """Given: whether a scheduler, `mini_vllm`'s or vLLM's, was told to schedule asynchronously."""
    config = getattr(scheduler, "vllm_config", None)
    return bool((config.scheduler_config if config else scheduler.config).async_scheduling)
