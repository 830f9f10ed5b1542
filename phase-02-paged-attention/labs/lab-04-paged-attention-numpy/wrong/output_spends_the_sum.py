"""The mean is divided in place, so that asking for it changes the state.

Asked once, at the end, it is right. But after the first piece the sums have to stay sums, or the next piece
is added to a mean. Divide into a new array.

Refused by `test_a_running_denominator`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class OnlineSoftmax(solution.OnlineSoftmax):
    def output(self) -> Any:
        self.weighted /= self.denominator[:, None]
        return self.weighted


solution.OnlineSoftmax = OnlineSoftmax


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
