"""Each piece is taken with its own maximum, and the pieces are added up as they are.

Weights are only comparable under one maximum. The running one is the larger of the old and the piece's,
and it never falls; what was added up before is rescaled to it.

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
        self.maximum = scores.max(axis=1)
        weights = np.exp(scores - self.maximum[:, None])
        self.denominator = self.denominator + weights.sum(axis=1)
        self.weighted = self.weighted + np.einsum("hk,khd->hd", weights, value)


solution.OnlineSoftmax = OnlineSoftmax


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
