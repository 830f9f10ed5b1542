"""All of the answer is in the cache.

A token is in the cache when it was computed, and a step computes the token sampled in the step before.
Nobody computes the last one.

Refused by `test_the_last_token_of_an_answer_is_nowhere`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution: Any = load_solution(__file__)


def written(visit: Any) -> Any:
    return visit.tokens + visit.answer


solution._written = written


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
