"""What is computed sees only what is computed with it.

The found keys are in the cache, and every later token attends to them: subtract pairs, not only tokens.

Refused by `test_what_computing_takes`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def recompute_flops(num_tokens: int, model: Any, num_found: int = 0) -> int:
    num_new = num_tokens - num_found
    pairs = num_new * (num_new + 1) // 2
    attention = 4 * model.num_layers * model.num_heads * model.head_dim * pairs
    return 2 * model.num_params * (num_tokens - num_found) + attention


solution.recompute_flops = recompute_flops


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
