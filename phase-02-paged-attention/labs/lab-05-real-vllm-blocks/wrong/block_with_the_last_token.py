"""A block is granted for the token that the last step samples.

A sampled token has no keys and values until it is computed, one step later, and the last one never is. So
P tokens of prompt and n sampled ones leave P + n - 1 in the cache. A step needs places for what it
computes, not for what it brings.

Refused by `test_a_block_is_granted_when_its_first_token_is_computed`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
original = solution.blocks_granted


def blocks_granted(
    num_prompt_tokens: int, max_tokens: int, block_size: int, max_num_batched_tokens: int
) -> Any:
    return original(num_prompt_tokens + 1, max_tokens, block_size, max_num_batched_tokens)


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
