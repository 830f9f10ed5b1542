"""Of several stop strings in one token the leftmost wins, instead of the first in the list.

It is what one would expect, and not what vLLM does: it goes through the list and takes the first string that
it finds. Return from within the loop over `stop`.

Refused by `test_the_order_of_the_list_decides_within_one_token`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.StopStringDetector


class StopStringDetector(Right):
    def update(self, piece: str, stop_terminated: bool = False) -> str | None:
        before = self.output_text
        given = list(self.stop)
        text = before + piece
        self.stop = sorted(
            given, key=lambda s: text.find(s, max(0, len(before) - len(s) + 1)) % (len(text) + 1)
        )
        try:
            return super().update(piece, stop_terminated)
        finally:
            self.stop = given


solution.StopStringDetector = StopStringDetector


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
