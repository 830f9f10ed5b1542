"""The gate looks at the tokens of this step instead of the whole sequence.

A long prompt is then let in for its first chunk, and stands in the way with the blocks of a half-read
prompt when the rest does not fit. `full_sequence_must_fit` asks for `request.num_tokens`.

Refused by `test_the_gate_asks_for_the_whole_sequence`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.KVCacheManager


class KVCacheManager(Right):
    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        full_sequence_must_fit: bool = False,
    ) -> Any:
        return super().allocate_slots(
            request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, False
        )


solution.KVCacheManager = KVCacheManager


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
