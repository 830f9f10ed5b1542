"""A prompt that is there as a whole is found but for its last token.

The last token must be computed, that is right. But what is found are full blocks, so the whole last
block is computed again.

Refused by `test_one_token_is_computed`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def found_tokens(visits: Any, block_size: int, caching: bool) -> list[int]:
    longer = [visit._replace(tokens=(*visit.tokens, -1)) for visit in visits]
    found = solution.found_tokens(longer, block_size, caching)
    return [min(hits, len(visit.tokens) - 1) for hits, visit in zip(found, visits, strict=True)]


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
