"""Softmax exponentiates the logits as they are, without subtracting the maximum.

exp of a float32 above 88.7 is inf, and inf / inf is NaN. argmax takes NaN for the largest, so a row
with one large logit draws token 0 for ever, without an error. Subtract each row's own maximum before
exp: the same factor cancels above and below the line.

Refused by `test_softmax_survives_large_logits`.
"""

from __future__ import annotations

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)


def softmax(logits: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(logits)
        return weights / weights.sum(axis=1, keepdims=True)


solution.softmax = softmax


def __getattr__(name: str) -> object:
    return getattr(solution, name)
