"""Temperature divides the probabilities, after the softmax, instead of the logits before it.

All probabilities of a row then shrink or grow by the same factor, and the draw, which only compares
them, stays as it was: T = 0.1 and T = 2 give the same tokens. Divide the logits; softmax turns the
division into a power: p ** (1 / T), renormalised.

Refused by `test_temperature_divides_the_logits`.
"""

from __future__ import annotations

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)
right_order = solution.sampling_probs


def apply_temperature(logits: np.ndarray, temp: np.ndarray) -> np.ndarray:
    return logits


def sampling_probs(logits, temp, min_p, k, p):  # type: ignore[no-untyped-def]
    probs = right_order(logits, temp, min_p, k, p)
    return probs / np.where(temp < solution.SAMPLING_EPS, np.float32(1), temp)[:, None]


solution.apply_temperature = apply_temperature
solution.sampling_probs = sampling_probs


def __getattr__(name: str) -> object:
    return getattr(solution, name)
