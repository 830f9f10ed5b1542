"""Whoever does not fit is passed by those behind.

Then a large request may wait for ever while small ones slip by. The first that does not fit ends the loop.

Refused by `test_nobody_passes`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.Scheduler


class Scheduler(Right):
    def _schedule_waiting(self, step: Any) -> None:
        aside = []
        while len(self.waiting):
            head = self.waiting.peek_request()
            Right._schedule_waiting(self, step)
            if not len(self.waiting) or self.waiting.peek_request() is not head:
                break
            aside.append(self.waiting.pop_request())
        for request in reversed(aside):
            self.waiting.prepend_request(request)


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
