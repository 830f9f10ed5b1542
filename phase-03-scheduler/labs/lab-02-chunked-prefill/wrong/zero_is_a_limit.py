"""A threshold of 0 is taken as a limit.

It means that there is none. Ask `0 < threshold < num_new_tokens` before you take it.

Refused by `test_chunks_by_hand`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def prefill_chunks(
    num_prompt_tokens: int,
    budget: int,
    num_decoding: int = 0,
    threshold: int = 0,
    num_cached: int = 0,
) -> list[int]:
    return solution_chunks(num_prompt_tokens, budget, num_decoding, threshold or 1, num_cached)


solution_chunks = solution.prefill_chunks
solution.prefill_chunks = prefill_chunks


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
