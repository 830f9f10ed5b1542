"""A last block that is not full gets a hash, too.

Its owner will write more tokens into it. Whoever found it by that hash would read slots that hold
something else by then. Only full blocks are hashed (I3), which is also why nothing ever has to be
copied.

Refused by `test_only_full_blocks_have_a_hash`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
Right = solution.block_hashes


def block_hashes(token_ids: Any, block_size: int, cache_salt: Any = None) -> list[bytes]:
    padded = [*token_ids, *[-1] * (-len(token_ids) % block_size)]
    return Right(padded, block_size, cache_salt)


solution.block_hashes = block_hashes


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
