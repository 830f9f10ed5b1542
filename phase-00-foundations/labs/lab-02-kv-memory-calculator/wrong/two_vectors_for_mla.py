"""The factor 2 is applied to MLA too.

MLA stores one compressed vector a layer (kv_lora_rank numbers, and qk_rope_head_dim more that carry
the position). K and V are both made from it when they are needed; nothing is stored twice.

Refused by `test_mla_stores_one_vector`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
original = solution.kv_bytes_per_token


def kv_bytes_per_token(config: Any, kv_cache_dtype: str = "auto") -> int:
    mla = config.get("kv_lora_rank") is not None
    return int(original(config, kv_cache_dtype) * (2 if mla else 1))


solution.kv_bytes_per_token = kv_bytes_per_token


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
