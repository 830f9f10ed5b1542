"""The denominator counts each request once.

vLLM records every look-up before it knows whether the blocks are there. A request that is refused for
nine steps is looked up ten times, and its tokens are in the sum ten times, and so are its hits. While
memory is short the rate tells more about who waits than about who shares.

Refused by `test_every_look_up_is_in_the_denominator`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
original = solution.hit_rate


def hit_rate(prompts: Any, block_size: int, lookups: Any) -> float:
    return float(original(prompts, block_size, [1] * len(prompts)))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
