"""`max_tokens` is held against the whole sequence, so a long prompt leaves no room for an answer.

`num_tokens` is prompt and output, and belongs to `max_model_len`. `max_tokens` is what the user asked to have
generated: compare it with `num_output_tokens`.

Refused by `test_ignore_eos_runs_to_length_cap`.
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
    elif request.num_tokens >= min(request.max_tokens, max_model_len):
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    else:
        return False
    return True


solution.check_stop = check_stop


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
