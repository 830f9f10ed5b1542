"""When a larger score comes, the values added up so far keep the weights of the old maximum.

The denominator is rescaled, and the sum of values is not: they no longer belong together. Everything that
was taken with the old maximum is multiplied by exp(old - new).

Refused by `test_a_running_denominator`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.OnlineSoftmax


class OnlineSoftmax(Right):
    def add(self, scores: Any, value: Any) -> None:
        before = self.weighted.copy()
        rescale = np.exp(self.maximum - np.maximum(self.maximum, scores.max(axis=1)))[:, None]
        super().add(scores, value)
        self.weighted += before * (1 - rescale)


solution.OnlineSoftmax = OnlineSoftmax


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
