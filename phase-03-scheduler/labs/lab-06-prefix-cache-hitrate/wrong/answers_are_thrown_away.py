"""Only prompts are in the cache.

A block is a block, whoever said what is in it: the model's answer is computed token by token into the
same blocks. A conversation lives on that, because the next turn begins with the answer before it.

Refused by `test_the_answer_is_found_too`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution: Any = load_solution(__file__)


def written(visit: Any) -> Any:
    return visit.tokens


solution._written = written


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
