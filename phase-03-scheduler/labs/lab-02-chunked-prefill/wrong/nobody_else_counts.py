"""The others who decode take nothing of the budget.

They run already, so they are served first, one token each, and what is left is the prompt's.

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
    if num_decoding >= budget:
        raise ValueError(f"{num_decoding} that decode use up a budget of {budget}")
    return solution_chunks(num_prompt_tokens, budget, 0, threshold, num_cached)


solution_chunks = solution.prefill_chunks
solution.prefill_chunks = prefill_chunks


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
