"""All slots of a request's blocks are read, also those behind its last token.

Ada has 10 tokens in 3 blocks of 4, so slots 11 and 12 are nobody's. In a fresh cache they hold zeros,
each of which takes a weight of exp(0), and in a used one they hold what the block's last owner wrote. Cut
the rows off at `seq_len`.

Refused by `test_gather_follows_the_table`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)


def gather(cache: Any, block_ids: Any, seq_len: int) -> Any:
    num_blocks = -(-seq_len // cache.shape[1])
    return cache[block_ids[:num_blocks]].reshape(-1, *cache.shape[2:])


def paged_prefill(
    query: Any, key_cache: Any, value_cache: Any, block_ids: Any, seq_len: int, scale: float
) -> Any:
    key, value = (gather(cache, block_ids, seq_len) for cache in (key_cache, value_cache))
    position = np.arange(seq_len - len(query), seq_len)
    visible = (np.arange(len(key)) <= position[:, None]) | (np.arange(len(key)) >= seq_len)
    return solution.attend(query, key, value, scale, visible)


solution.gather = gather
solution.paged_prefill = paged_prefill


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
