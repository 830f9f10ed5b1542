"""All blocks of the pool are handed out, the null block with them.

vLLM takes block 0 out of the pool when it starts and never gives it to a request, so num_gpu_blocks
- 1 are left. The log's concurrency counts it all the same; what really runs at once does not.

Refused by `test_no_room_returns_zero`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def requests_at_once(num_blocks: int, num_tokens: int, block_size: int = 16) -> int:
    return int(num_blocks // solution.blocks_for(num_tokens, block_size))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
