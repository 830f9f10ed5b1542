"""The look-ups of a preempted request are in the counters.

They once were, and a server short of memory then showed a fine hit rate, made of requests that found
what they themselves had computed. Today they go to a sum apart.

Refused by `test_preempted_look_ups_stand_apart`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def counters(steps: Any) -> Any:
    looks = [look for step in steps for look in step.lookups]
    queries = sum(look.num_tokens for look in looks)
    return solution.Counters(queries, sum(look.num_hits for look in looks))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
