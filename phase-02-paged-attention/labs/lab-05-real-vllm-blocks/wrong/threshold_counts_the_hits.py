"""long_prefill_token_threshold is read as a mark in the prompt that a step may not pass.

It limits what one step computes. Tokens that the prefix cache brought are computed by nobody, so they do
not use it up: take what is left of the prompt behind the hits, and of that at most the threshold.

Refused by `test_a_chunk_begins_behind_the_hits`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)
original = solution.why_waiting


def why_waiting(moment: Any) -> Any:
    threshold = moment.long_prefill_token_threshold
    if threshold:
        threshold = max(1, threshold - moment.hit_blocks * moment.block_size)
    return original(replace(moment, long_prefill_token_threshold=threshold))


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
