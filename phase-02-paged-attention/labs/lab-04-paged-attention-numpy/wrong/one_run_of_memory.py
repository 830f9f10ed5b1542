"""Only the first entry of the table is looked up, and the rest is read from where that block ends.

It works as long as blocks are handed out in order, which they are in a quiet test. Ada's second block is
2, not 8. Look up every block.

Refused by `test_gather_follows_the_table`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def gather(cache: Any, block_ids: Any, seq_len: int) -> Any:
    rows = cache.reshape(-1, *cache.shape[2:])
    first = int(block_ids[0]) * cache.shape[1]
    return rows.take(range(first, first + seq_len), axis=0, mode="wrap")


solution.gather = gather


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
