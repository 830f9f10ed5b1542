"""A block is found by its own tokens, wherever they stand.

Keys and values depend on everything before them, so a block's hash contains the hash of the block before
it. The same 16 tokens behind another beginning, or shifted by one, are another block.

Refused by `test_a_block_is_found_behind_its_own_past_only`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def expected_hits(prompts: Any, block_size: int) -> Any:
    published: set[tuple[int, ...]] = set()
    hits = []
    for prompt in prompts:
        blocks = [
            tuple(prompt[i : i + block_size])
            for i in range(0, len(prompt) - block_size + 1, block_size)
        ]
        usable = blocks[: (len(prompt) - 1) // block_size]
        found = 0
        while found < len(usable) and usable[found] in published:
            found += 1
        hits.append(found * block_size)
        published.update(blocks)
    return hits


solution.expected_hits = expected_hits


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
