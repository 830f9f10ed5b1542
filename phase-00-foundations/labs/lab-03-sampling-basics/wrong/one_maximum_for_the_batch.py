"""The largest logit of the whole batch is taken off, instead of each row's own.

A row of logits far below another row's then underflows: all its exps are 0, and 0 / 0 is NaN. Alone the
row is right, so it depends on the neighbours. Reduce over axis=1, with keepdims=True.

Refused by `test_softmax_survives_large_logits`.
"""

from __future__ import annotations

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)


def softmax(logits):  # type: ignore[no-untyped-def]
    weights = np.exp(logits - logits.max())
    return weights / weights.sum(axis=1, keepdims=True)


def compute_logprobs(logits):  # type: ignore[no-untyped-def]
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


solution.softmax = softmax
solution.compute_logprobs = compute_logprobs


def __getattr__(name: str) -> object:
    return getattr(solution, name)
