"""It wants a plain `Scheduler` where scheduling is synchronous.

`AsyncScheduler` can do both: with one batch in flight no placeholder is ever open between two steps.

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
            if "AsyncScheduler" in str(base.__mro__) and not solution.is_async(self):
                raise ValueError(f"async_scheduling is off, got {base.__name__}")

    return PolicyScheduler
