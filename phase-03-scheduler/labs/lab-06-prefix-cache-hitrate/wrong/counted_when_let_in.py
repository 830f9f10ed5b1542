"""A prompt is counted when its request is looked up.

The numbers travel with the request's first output. Until then no meter knows of the prompt.

Refused by `test_without_a_token_nothing_is_counted`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def by_source(steps: Any, num_prompt_tokens: Any) -> Any:
    names = frozenset(look.name for step in steps for look in step.lookups)
    last = solution.Step((), {}, names | {name for step in steps for name in step.sampled})
    return solution.by_source([*steps, last], num_prompt_tokens)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
