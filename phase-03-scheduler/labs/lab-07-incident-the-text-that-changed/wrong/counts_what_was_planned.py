"""The withdrawn chunk is counted as computed.

A plan is not a computation. The chunk from 64 to 96 was planned in step 6 and taken back in step 6:
`computes` of that step does not have gil-2.

Refused by `test_what_it_found_and_what_was_there`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.diagnose


def diagnose() -> Any:
    return right()._replace(computed=96)


solution.diagnose = diagnose


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
