"""Two lists are called equal when the shorter one is a beginning of the longer.

`zip` stops at the end of the shorter list. An engine that took one step more, or lost its last event, would
pass. Compare the lengths, too.

Refused by `test_one_list_is_longer`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def first_difference(theirs: Any, ours: Any, tokens: bool = True) -> Any:
    theirs, ours = list(theirs), list(ours)
    both = min(len(theirs), len(ours))
    return solution.first_difference(theirs[:both], ours[:both], tokens)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
