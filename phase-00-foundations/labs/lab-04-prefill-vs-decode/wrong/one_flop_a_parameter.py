"""One FLOP for each parameter and token: the multiplication is counted, the addition is not.

A product of matrices multiplies and adds for every weight, and a datasheet's FLOP/s counts both. With one of
them every intensity is half of what it is, and a prompt seems to wait for memory twice as long.

Refused by `test_a_step_multiplies_and_adds`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def step_flops(model: Any, num_tokens: int) -> float:
    return float(model.num_params * num_tokens)


solution.step_flops = step_flops


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
