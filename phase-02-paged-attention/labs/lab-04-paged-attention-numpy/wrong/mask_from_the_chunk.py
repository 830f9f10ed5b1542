"""Query j of a chunk sees keys 0 to j, as if the chunk were the whole prompt.

A chunk's first query stands at position `seq_len - n` and sees everything that earlier chunks have
written. For a whole prompt the two are the same, so a test without chunks does not notice.

Refused by `test_chunks_see_what_the_whole_prompt_sees`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)


def paged_prefill(
    query: Any, key_cache: Any, value_cache: Any, block_ids: Any, seq_len: int, scale: float
) -> Any:
    key, value = (solution.gather(cache, block_ids, seq_len) for cache in (key_cache, value_cache))
    n = len(query)
    visible = np.arange(seq_len) <= np.arange(n)[:, None] if n > 1 else np.ones((1, seq_len), bool)
    return solution.attend(query, key, value, scale, visible)


solution.paged_prefill = paged_prefill


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
