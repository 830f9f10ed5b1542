"""Query heads take KV heads in turn: head h reads KV head h % num_kv_heads.

The query heads of one group are neighbours: with four of them on two KV heads, 0 and 1 read KV head 0,
and 2 and 3 read KV head 1. Both ways run, and have the same shapes. It is h // group.

Refused by `test_attend_is_attention`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)


def attend(query: Any, key: Any, value: Any, scale: float, visible: Any) -> Any:
    num_heads, num_kv_heads = query.shape[1], key.shape[1]
    order = np.argsort(np.arange(num_heads) % num_kv_heads, kind="stable")
    out = np.empty_like(query)
    out[:, order] = right(query[:, order], key, value, scale, visible)
    return out


right = solution.attend
solution.attend = attend


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
