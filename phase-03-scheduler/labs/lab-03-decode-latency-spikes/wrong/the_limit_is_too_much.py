"""A setting that just keeps the limit is refused.

At most means that the limit itself is allowed: `<=`.

Refused by `test_best_setting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def best_setting(rows: Sequence[Any], limit: float) -> Any:
    allowed = [row for row in rows if row.p99_itl < limit]
    return min(allowed, key=lambda row: row.ttft) if allowed else None


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
