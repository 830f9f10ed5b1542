"""Whether an output has begun to repeat itself.

Mirrors the first half of `vllm/v1/core/sched/utils.py`; the second, `check_stop`, stands in `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.sampling_params import RepetitionDetectionParams


def check_sequence_repetition(token_ids: Sequence[int], params: RepetitionDetectionParams) -> bool:
    """Whether the tokens end with one pattern of an allowed size, `min_count` times in a row.

    The cost of a look is the product of the longest pattern and the count at most, whatever the length.
    Source: `vllm/v1/core/sched/utils.py:28 check_sequence_repetition`.
    """
    if params.max_pattern_size <= 0 or params.min_count < 2:
        return False
    for size in range(max(params.min_pattern_size, 1), params.max_pattern_size + 1):
        length = size * params.min_count
        if length > len(token_ids):
            return False
        # The end repeats with this period if it equals itself, moved by one pattern.
        end = token_ids[len(token_ids) - length :]
        if end[size:] == end[:-size]:
            return True
    return False
