"""The hash is of the block's own tokens, without what came before.

Attention wrote each key and value in the light of all earlier tokens. "Yours sincerely" after two
letters is two contents. Feed the parent's hash into the child's.

Refused by `test_a_hash_speaks_for_all_that_came_before`.
"""

from __future__ import annotations

import hashlib
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def block_hashes(token_ids: Any, block_size: int, cache_salt: Any = None) -> list[bytes]:
    salt = "" if cache_salt is None else cache_salt
    return [
        hashlib.sha256(f"{salt}|{list(token_ids[i : i + block_size])}".encode()).digest()
        for i in range(0, len(token_ids) - block_size + 1, block_size)
    ]


solution.block_hashes = block_hashes


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
