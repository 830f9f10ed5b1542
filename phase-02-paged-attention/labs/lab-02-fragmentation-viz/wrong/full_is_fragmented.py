"""A pool is called fragmented whenever no hole is large enough, also when it is simply full.

With 25 slots free nobody can place 26, however they lie: that is a full pool, and no allocator helps.
External fragmentation is the other case: room enough in all, and no hole that is large enough.

Refused by `test_stuck_with_room_enough`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def is_stuck(holes: Any, size: int) -> bool:
    return max((hole.size for hole in holes), default=0) < size


solution.is_stuck = is_stuck


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
