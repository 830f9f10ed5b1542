"""Only blocks that begin where a block begins are compared.

A clock or a name in front moves the text by any number of tokens. To see that it is the same text, look
at every place of both.

Refused by `test_moved_by_any_number_of_tokens`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution: Any = load_solution(__file__)


def runs(tokens: Any, length: int) -> Any:
    return (tuple(tokens[i : i + length]) for i in range(0, len(tokens) - length + 1, length))


solution._runs = runs


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
