"""It wants a base that is called `AsyncScheduler`.

A subclass of it has another name and plans ahead all the same. Look at all bases.

Refused by `test_the_base_class_must_fit`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def make_scheduler(base: type, policy: Any = solution.policy) -> Any:
    class PolicyScheduler(solution.make_scheduler(base, policy)):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if solution.is_async(self) and base.__name__ != "AsyncScheduler":
                raise ValueError(f"{base.__name__} does not plan ahead")

    return PolicyScheduler
