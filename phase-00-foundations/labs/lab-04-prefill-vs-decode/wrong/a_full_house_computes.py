"""64 requests are a large batch, so they must keep the arithmetic busy: compute-bound, a millisecond.

Batching shares the weights, not the caches. Each of the 64 reads its own 8,192 tokens, 64 GiB in all, which
is four times the weights: the step waits for memory, and for 25 ms.

Refused by `test_the_predictions_hold`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def predictions() -> Any:
    return dict(solution.predictions(), **{"a full house": solution.Prediction("compute", 1.0)})


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
