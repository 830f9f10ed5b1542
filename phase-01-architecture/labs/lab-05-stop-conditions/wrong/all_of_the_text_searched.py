"""The whole text is searched at every token, so a stop string that `min_tokens` let pass strikes later.

A stop string completed within the first `min_tokens` tokens is text like any other, and stays so.
Search where a match would end in the newest piece: from `len(stop_str) - 1` characters before it. It is
also what keeps the search from growing with the answer.

Refused by `test_min_tokens_bars_stop_strings_too`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.StopStringDetector


class StopStringDetector(Right):
    def update(self, piece: str, stop_terminated: bool = False) -> str | None:
        self.num_tokens += 1
        if stop_terminated and not self.include_stop_str_in_output:
            return None
        self.output_text += piece
        if self.num_tokens <= self.min_tokens:
            return None
        for stop_str in self.stop:
            at = self.output_text.find(stop_str)
            if at >= 0:
                at += len(stop_str) if self.include_stop_str_in_output else 0
                self.output_text = self.output_text[:at]
                return stop_str
        return None


solution.StopStringDetector = StopStringDetector


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
