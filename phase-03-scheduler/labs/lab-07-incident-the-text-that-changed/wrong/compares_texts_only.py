"""Nobody asks what is still found.

Whoever empties the cache has right texts too, and pays for them with every prefix. The promise has two
halves: nothing unsound is found, and what is sound still is.

Refused by `test_your_test_fails_on_every_bad_mend`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
solution.CASES = tuple(case._replace(finds=0) for case in solution.CASES)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
