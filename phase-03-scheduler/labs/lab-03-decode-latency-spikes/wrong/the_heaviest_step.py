"""The neighbour is looked for in the longest step only.

The longest step may be long because of many. Look at each neighbour in each step that brought the victim
a token.

Refused by `test_worst_neighbour`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def worst_neighbour(steps: Sequence[Any], victim: str) -> str | None:
    mine = [step for step in steps if victim in step.sampled]
    longest = max(mine, key=lambda step: sum(step.tokens.values()) - step.tokens.get(victim, 0))
    return solution.worst_neighbour([longest], victim)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
