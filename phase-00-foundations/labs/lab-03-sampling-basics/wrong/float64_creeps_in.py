"""`np.full(shape, -np.inf)` is float64, and so is everything that is computed from it.

The tokens are the same, so nothing seems wrong, but every step after it works on twice the memory. Say
`dtype=np.float32`, or begin with `np.full_like(logits, -np.inf)`.

Refused by `test_what_comes_out_is_float32`.
"""

from __future__ import annotations

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)
original = solution.apply_top_p


def apply_top_p(logits, p):  # type: ignore[no-untyped-def]
    kept = np.full(logits.shape, -np.inf)
    cut = original(logits, p)
    kept[np.isfinite(cut)] = cut[np.isfinite(cut)]
    return kept


solution.apply_top_p = apply_top_p


def __getattr__(name: str) -> object:
    return getattr(solution, name)
