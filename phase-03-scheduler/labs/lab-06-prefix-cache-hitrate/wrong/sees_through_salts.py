"""What was said under other salts counts as said before.

Then the advice is to move the text to the front, and it would not help: under another salt it stays
out of sight.

Refused by `test_what_others_say_under_a_salt_does_not_count`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def diagnose(visits: Any, which: int, found: int, block_size: int, caching: bool) -> Any:
    got = solution.diagnose(visits, which, found, block_size, caching)
    plain = [visit._replace(salt=None) for visit in visits]
    blind = solution.diagnose(plain, which, found, block_size, caching)
    return blind if got.reason == solution.LITTLE else got


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
