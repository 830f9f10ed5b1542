"""`min_tokens` holds back EOS, and a stop token still ends the request before it.

The user asked for at least so many tokens, and does not care which id would have cut them short. `min_tokens`
is the first check of all: below it, return False before you look at the token.

Refused by `test_min_tokens_holds_every_check_back`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution
from mini_vllm.request import Request, RequestStatus

solution = load_solution(__file__)


def check_stop(request: Request, max_model_len: int) -> bool:
    params = request.sampling_params
    newest = request.output_token_ids[-1]
    if newest == params.eos_token_id:
        if request.num_output_tokens < params.min_tokens:
            return False
        request.status = RequestStatus.FINISHED_STOPPED
    elif newest in params.stop_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = newest
    elif request.num_output_tokens >= request.max_tokens or request.num_tokens >= max_model_len:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    else:
        return False
    return True


solution.check_stop = check_stop


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
