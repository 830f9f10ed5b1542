"""The length is checked before EOS, so a whole answer of exactly `max_tokens` is reported as cut off.

Both are true of that token, and whichever is asked first is what the user hears. "length" tells a client
to try again with a larger limit; the answer it had was complete. Ask for EOS and stop tokens first.

Refused by `test_eos_on_the_boundary_reports_stop`.
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
    if request.num_output_tokens >= request.max_tokens or request.num_tokens >= max_model_len:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        return True
    if newest == params.eos_token_id or newest in params.stop_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = None if newest == params.eos_token_id else newest
        return True
    return False


solution.check_stop = check_stop


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
