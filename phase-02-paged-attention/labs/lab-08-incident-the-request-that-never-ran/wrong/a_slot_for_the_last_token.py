"""The last output token is counted as if it were computed.

It is sampled, told to the client, and the request is over: nobody attends over it, so it needs no
slot. Counted, it refuses a request that would have run whenever the token before it filled a block.

Refused by `test_the_most_blocks_a_request_can_hold`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def blocks_at_most(prompt_tokens: int, max_tokens: int, block_size: int, max_model_len: int) -> int:
    total: int = min(prompt_tokens + max_tokens, max_model_len)
    return -(total // -block_size)


solution.blocks_at_most = blocks_at_most


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
