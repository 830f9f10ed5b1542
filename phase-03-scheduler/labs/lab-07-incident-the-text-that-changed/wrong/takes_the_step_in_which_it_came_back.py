"""The step in which the victim came back is taken for the one that took its tokens back.

In step 21 the damage shows. It was done in the step that planned for gil-2 and then preempted it; that
step names a victim.

Refused by `test_the_step_that_was_taken_back`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.diagnose


def diagnose() -> Any:
    return right()._replace(withdrawn_in=21)


solution.diagnose = diagnose


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
