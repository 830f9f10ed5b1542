"""The door measures the prompt, and forgets that a request grows.

contract-3 is refused, and minutes-6 is let in: its prompt fits, and 27 tokens later it wants a
block that is not there. Take the request as it will be at its longest.

Refused by `test_the_boundary_of_growth`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.admit


def admit(prompt_tokens: int, max_tokens: int, **engine: int) -> None:
    right(prompt_tokens, min(max_tokens, 1), **engine)


solution.admit = admit


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
