"""Only the weights are counted.

For 2,000 tokens of an 8B model that is 3 % too little, for 100,000 it is too little by more than half.

Refused by `test_what_computing_takes`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def recompute_flops(num_tokens: int, model: Any, num_found: int = 0) -> int:
    return 2 * model.num_params * (num_tokens - num_found)


solution.recompute_flops = recompute_flops


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
