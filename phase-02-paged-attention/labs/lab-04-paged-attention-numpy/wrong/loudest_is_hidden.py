"""The largest score is taken over all keys, and the hidden ones are left out afterwards.

As long as scores are small, nobody notices: any number may come off before `exp`. But if the largest belongs
to a hidden key and is far above the others, every visible weight is 0, and so is their sum. Hide first, then
take the maximum.

Refused by `test_attend_is_attention`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)


def attend(query: Any, key: Any, value: Any, scale: float, visible: Any) -> Any:
    group = query.shape[1] // key.shape[1]
    scores = scale * np.einsum("qhd,khd->hqk", query, key.repeat(group, axis=1))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True)) * visible
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, value.repeat(group, axis=1))


solution.attend = attend


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
