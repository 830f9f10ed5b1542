"""A scheduler with requests in it, and prompts, for the tests of its rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mini_vllm.core.request import Request
from mini_vllm.core.sched.scheduler import Scheduler
from tests.engine.helpers.engine.workloads import make_request, make_scheduler


def setup(*prompts: Iterable[int], **settings: Any) -> tuple[Scheduler, list[Request]]:
    """A scheduler and requests "0", "1", ... with these prompts, 16 tokens each to make."""
    more = settings.pop("more", {})
    scheduler = make_scheduler(**settings)
    requests = []
    for i, prompt in enumerate(prompts):
        request = make_request(scheduler, str(i), list(prompt), arrival_time=float(i), **more)
        scheduler.add_request(request)
        requests.append(request)
    return scheduler, requests


def text(n: int, start: int = 100) -> range:
    return range(start, start + n)


def apart(n: int, count: int) -> list[range]:
    """`count` prompts of `n` tokens that share nothing."""
    return [text(n, 1000 * (i + 1)) for i in range(count)]
