"""The setting with the smallest gaps is taken.

Among those that keep the limit the document's time decides: a smaller budget than needed makes it wait
for nothing.

Refused by `test_best_setting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def best_setting(rows: Sequence[Any], limit: float) -> Any:
    allowed = [row for row in rows if row.p99_itl <= limit]
    return min(allowed, key=lambda row: row.p99_itl) if allowed else None


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
