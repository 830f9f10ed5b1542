"""A duplicate is expected to recompute one token.

One token must be computed, that much is true. But hits are whole blocks, so the block in which that token
lies is computed whole: of 32 tokens the second copy finds 16, not 31.

Refused by `test_a_duplicate_recomputes_its_last_block`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def expected_hits(prompts: Any, block_size: int) -> Any:
    found = solution_hits(prompts, block_size)
    for i, prompt in enumerate(prompts):
        if len(prompt) % block_size == 0 and list(prompt) in map(list, prompts[:i]):
            found[i] = max(0, len(prompt) - 1)
    return found


solution_hits = solution.expected_hits


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
