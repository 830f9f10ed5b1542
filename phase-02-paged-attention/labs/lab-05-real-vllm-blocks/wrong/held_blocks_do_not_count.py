"""A request is too large only if what it still has to take is larger than the pool.

Blocks that somebody else holds need not be taken from the free queue, but the request would hold them too,
and they lie in the same pool. A sequence of ten blocks never fits in nine, whoever holds two of them now.

Refused by `test_more_than_the_usable_pool_waits_for_ever`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.why_waiting


def why_waiting(moment: Any) -> str | None:
    rule: str | None = right(moment)
    m = moment
    to_take = solution.blocks_needed(m.num_tokens, m.block_size, m.hit_blocks, m.free_hit_blocks)
    if rule != solution.NEVER or to_take > m.num_gpu_blocks - 1:
        return rule
    return str(right(replace(moment, num_gpu_blocks=10**9)))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
