"""Rows of the padding are written, to slot -1.

numpy counts -1 from the end, so the padding lands in the last slot of the last block, and whoever owns
that block reads it. On a GPU it would lie before the cache's first byte. Leave rows with a negative slot
out.

Refused by `test_padding_is_not_written`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)


def write_kv(key: Any, value: Any, key_cache: Any, value_cache: Any, slots: Any) -> None:
    block_id, offset = np.divmod(slots, key_cache.shape[1])
    key_cache[block_id, offset] = key
    value_cache[block_id, offset] = value


solution.write_kv = write_kv


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
