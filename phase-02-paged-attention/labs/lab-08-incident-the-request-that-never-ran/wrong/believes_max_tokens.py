"""max_tokens alone says how long a request gets.

A client that wants "as much as there is" sends a large max_tokens, and max_model_len ends the
request long before. Whoever reckons with max_tokens refuses nearly everybody. Take the smaller of
the two ends.

Refused by `test_max_model_len_stops_a_request_in_time`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def blocks_at_most(prompt_tokens: int, max_tokens: int, block_size: int, max_model_len: int) -> int:
    return -((prompt_tokens + max_tokens - 1) // -block_size)


solution.blocks_at_most = blocks_at_most


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
