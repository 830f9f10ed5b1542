"""Text is shown as soon as it is there, and so is the beginning of a stop string.

The client has "EN" on its screen when "D" arrives and the text is cut before "END". While the request
runs, hold back as many characters as could still turn out to begin a stop string: one less than the
longest has.

Refused by `test_nothing_shown_is_taken_back`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.StopStringDetector


class StopStringDetector(Right):
    def next_text(self, finished: bool) -> str:
        return super().next_text(True)


solution.StopStringDetector = StopStringDetector


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
