"""After a turn all that was said is in the cache.

The last token of the answer was sampled and never computed, so the block that it completes was not
published.

Refused by `test_conversation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def conversation(turns: Sequence[tuple[int, int]], block_size: int, caching: bool) -> list[int]:
    counts: list[int] = []
    said = computed = 0
    for question, answer in turns:
        prompt = said + question
        hit = solution.found(prompt, computed, block_size) if caching else 0
        counts.append(prompt - hit + answer - 1)
        said = prompt + answer
        computed = said
    return counts


solution.conversation = conversation


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
