"""The window holds exactly the newest look-ups.

The core sends one sum a step, and a sum cannot be halved. So a step is forgotten as a whole, and
fewer may be left than there is room for.

Refused by `test_the_window_forgets_whole_steps`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def line_rate(steps: Any, most: int = 1000) -> float:
    looks = [look for step in steps for look in step.lookups if not look.preempted][-most:]
    queries = sum(look.num_tokens for look in looks)
    return sum(look.num_hits for look in looks) / queries if queries else 0.0


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
