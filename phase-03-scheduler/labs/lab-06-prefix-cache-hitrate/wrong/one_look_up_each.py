"""The counters count each request once.

vLLM records a look-up before it knows whether the request gets its blocks. Who waits is
looked up in each step, and counted in each.

Refused by `test_every_look_up_counts`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def counters(steps: Any) -> Any:
    looks = {look.name: look for step in steps for look in step.lookups if not look.preempted}
    queries = sum(look.num_tokens for look in looks.values())
    return solution.Counters(queries, sum(look.num_hits for look in looks.values()))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
