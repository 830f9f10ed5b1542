"""All tokens may be found.

One at least is computed, or there are no logits: beyond `num_tokens - 1` there is no answer but None.

Refused by `test_break_even`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def break_even(num_tokens: int, model: Any, gpu: Any, link: Any) -> int | None:
    limit = solution.swap_ms(num_tokens, model, link)
    for num_found in range(num_tokens + 1):
        if solution.recompute_ms(num_tokens, model, gpu, num_found) <= limit:
            return num_found
    return None


solution.break_even = break_even


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
