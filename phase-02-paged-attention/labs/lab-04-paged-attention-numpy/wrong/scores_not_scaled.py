"""The scores are not scaled.

Without the factor the softmax is too sharp: with 128 numbers a head the largest score counts as if it
were eleven times as large. The result looks like attention, and the text like text. Multiply the scores
by `scale`, whatever it is.

Refused by `test_attend_is_attention`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def attend(query: Any, key: Any, value: Any, scale: float, visible: Any) -> Any:
    return right(query, key, value, 1.0, visible)


right = solution.attend
solution.attend = attend


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
