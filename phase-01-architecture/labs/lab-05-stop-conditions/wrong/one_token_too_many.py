"""The limits are compared with `>`, so every request that runs into one makes a token too many.

The token has been appended before `check_stop` looks. When the count equals `max_tokens`, or `max_model_len`,
that token was the last one allowed: compare with `>=`.

Refused by `test_no_eos_hits_length_cap`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import Request, RequestStatus

solution = load_solution(__file__)


def check_stop(request: Request, max_model_len: int) -> bool:
    params = request.sampling_params
    if request.num_output_tokens < params.min_tokens:
        return False
    newest = request.output_token_ids[-1]
    if newest == params.eos_token_id:
        request.status = RequestStatus.FINISHED_STOPPED
    elif newest in params.stop_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = newest
    elif request.num_output_tokens > request.max_tokens or request.num_tokens > max_model_len:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    else:
        return False
    return True


solution.check_stop = check_stop


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
