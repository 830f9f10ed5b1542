"""All rows draw their noise from the shared stream; the requests' own generators are not used.

Every test with one request at a time passes. In a batch a seed then means nothing: who else is running
decides the numbers a request gets, and a user who set one sees other text each time. Overwrite the noise
of row i with V numbers from `generators[i]`.

Refused by `test_the_shared_stream_is_used_only_where_it_is_needed`.
"""

from __future__ import annotations

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)


def random_sample(probs, generators, rng):  # type: ignore[no-untyped-def]
    noise = np.maximum(rng.standard_exponential(probs.shape), np.finfo(np.float64).tiny)
    return (probs / noise).argmax(axis=1)


solution.random_sample = random_sample


def __getattr__(name: str) -> object:
    return getattr(solution, name)
