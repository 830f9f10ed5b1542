"""It reorders when the step is planned.

The plan has been made from the order of the step before, and whoever came since stands at the tail.

Refused by `test_the_scheduler_follows_the_policy_it_was_given`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def make_scheduler(base: type, policy: Any = solution.policy) -> Any:
    class PolicyScheduler(solution.make_scheduler(base, policy)):  # type: ignore[misc]
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            plan = base.schedule(self, *args, **kwargs)
            solution.reorder(self.waiting, policy, self.clock())
            return plan

    return PolicyScheduler
