"""An answer of 4 tokens is computed with 4.

The last token is sampled, and then the request is over: nobody computes its keys and values.

Refused by `test_without_caching_everybody_pays`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def scheduled_tokens(
    workload: Sequence[Any], block_size: int, caching: bool, threshold: int = 0
) -> list[int]:
    counts: list[int] = []
    earlier: list[tuple[Any, int]] = []  # and the tokens that it has slots for so far
    for ask in workload:
        hit = 0
        if caching:
            cached = [
                min(solution.common_prefix(ask.prompt, other.prompt), granted)
                for other, granted in earlier
                if other.salt == ask.salt
            ]
            hit = solution.found(len(ask.prompt), max(cached, default=0), block_size)
        missing = len(ask.prompt) - hit
        earlier.append((ask, hit + min(missing, threshold or missing)))
        counts.append(missing + ask.num_answer_tokens)
    return counts


solution.scheduled_tokens = scheduled_tokens


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
