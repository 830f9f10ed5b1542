"""The test tries a prompt that is too long, and never one that grows too long.

A test for half of the incident lets half of the mends pass that are none: an engine that measures
prompts at the door looks right to it. Both requests of the trace belong in it.

Refused by `test_your_test_fails_on_every_bad_mend`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
solution.CASES = tuple((prompt, most) for prompt, most in solution.CASES if most == 1)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
