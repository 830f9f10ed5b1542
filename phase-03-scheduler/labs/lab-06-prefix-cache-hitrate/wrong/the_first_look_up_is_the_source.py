"""The first look-up says what a request found.

While a request waits, its blocks may be evicted, or others may compute more of its prompt. What counts
is what it found when it was let in.

Refused by `test_the_last_look_up_is_the_source`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def by_source(steps: Any, num_prompt_tokens: Any) -> Any:
    seen: set[str] = set()
    once = []
    for step in steps:
        looks = tuple(look for look in step.lookups if look.name not in seen)
        seen |= {look.name for look in looks}
        once.append(step._replace(lookups=looks))
    return solution.by_source(once, num_prompt_tokens)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
