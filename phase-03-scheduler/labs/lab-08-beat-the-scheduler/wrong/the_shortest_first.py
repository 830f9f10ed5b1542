"""It serves the shortest first, for ever.

As long as short ones keep coming, a long one does not get its turn. What does it need besides?

Refused by `test_nobody_starves`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def policy(request: Any, now: float) -> Any:
    return request.num_prompt_tokens + 5 * request.max_tokens


def make_scheduler(base: type, policy: Any = policy) -> Any:
    return solution.make_scheduler(base, policy)
