"""The free blocks are counted before those who finished have left.

In the trace `free` is read when the step is over: tokens taken in, ends done. The tables are read
earlier, right after the step was scheduled. Each at its time.

Refused by `test_a_right_manager_makes_no_difference`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.Replay.take_in


def take_in(self: Any, sampled: Any, finished: Any) -> None:
    late = getattr(self, "late", [])
    right(self, sampled, late)
    self.late = list(finished)


solution.Replay.take_in = take_in


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
