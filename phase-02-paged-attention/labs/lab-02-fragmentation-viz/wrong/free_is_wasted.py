"""Free slots are counted as wasted.

A free slot can be given to the next request, so nothing is lost. Wasted is what belongs to somebody and
holds no token: taken minus held, not the pool minus held.

Refused by `test_wasted_is_taken_and_empty`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def wasted_slots(allocator: Any, held: Any) -> int:
    free = sum(size for _, size in allocator.holes())
    return allocator.num_taken() + free - sum(held.values())


solution.wasted_slots = wasted_slots


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
