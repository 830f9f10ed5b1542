"""Everything that was seen before is found, to the token.

The cache knows full blocks only. A prefix of 66 tokens in blocks of 4 is worth 64.

Refused by `test_found`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def found(prompt_tokens: int, cached_prefix_tokens: int, block_size: int) -> int:
    return min(cached_prefix_tokens, prompt_tokens - 1)


solution.found = found


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
