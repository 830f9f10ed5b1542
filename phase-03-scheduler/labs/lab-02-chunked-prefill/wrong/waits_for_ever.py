"""A prompt that never gets a token is not refused.

If the others use up the budget, the answer is no list of pieces. vLLM refuses such settings when it starts:
`max_num_batched_tokens` must be at least `max_num_seqs`.

Refused by `test_somebody_who_never_gets_a_token`.
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
        return []
    return solution_chunks(num_prompt_tokens, budget, num_decoding, threshold, num_cached)


solution_chunks = solution.prefill_chunks


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
