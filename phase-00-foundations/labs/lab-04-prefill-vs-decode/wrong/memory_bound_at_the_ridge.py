"""Calls work at exactly the ridge point memory-bound (<= instead of <).

At the ridge reading and computing take equally long: nothing waits for memory, and more bandwidth would
not help. Memory-bound is what lies strictly to the left.

Refused by `test_the_ridge_itself_is_compute_bound`.
"""

from __future__ import annotations

from course.learner.labs import load_solution

solution = load_solution(__file__)


def is_memory_bound(device, intensity):  # type: ignore[no-untyped-def]
    return intensity <= solution.ridge_point(device)


solution.is_memory_bound = is_memory_bound


def __getattr__(name: str) -> object:
    return getattr(solution, name)
