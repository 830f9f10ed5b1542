"""Whether a request ends with the token that it was just given.

Mirrors `vllm/v1/core/sched/utils.py` (`check_sequence_repetition` 28, `check_stop` 94). Left out: pooling.
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.core.request import Request, RequestStatus
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


def check_stop(request: Request, max_model_len: int) -> bool:
    """Whether the token just appended ends the request; sets its status and stop reason.

    The order of the checks is `vllm/v1/core/sched/utils.py:94 check_stop`: `min_tokens` first of
    all, then EOS, stop token ids, length, repetition. Stop strings are not seen here but where text is made.
    """
    num_output_tokens = len(request.output_token_ids)
    if num_output_tokens < request.min_tokens:
        return False
    last_token_id = request.output_token_ids[-1]
    if last_token_id == request.eos_token_id:
        request.status = RequestStatus.FINISHED_STOPPED
        return True
    if last_token_id in request.stop_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = last_token_id
        return True
    if num_output_tokens >= request.max_tokens or request.num_tokens >= max_model_len:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        return True
    detection = request.repetition_detection
    if detection is not None and check_sequence_repetition(request.output_token_ids, detection):
        request.status = RequestStatus.FINISHED_REPETITION
        request.stop_reason = "repetition_detected"
        return True
    return False
