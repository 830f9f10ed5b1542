"""What is held back is never shown, so every answer lacks its last characters.

Holding back waits for a stop string that may come. Once the request has finished, whatever finished it, none
will: show all of `output_text` then.

Refused by `test_held_back_text_comes_with_the_end`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.StopStringDetector


class StopStringDetector(Right):
    def next_text(self, finished: bool) -> str:
        return super().next_text(False)


solution.StopStringDetector = StopStringDetector


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
