"""Every request of the step samples, also one whose prompt has not been read to its end.

The last row of a chunk predicts a token that the prompt has already. Nothing crashes: the client gets
a first token that answers a shorter prompt, and the request goes on with it. A row counts only where
the cache holds all the request's tokens after the step; where `seq_lens < num_tokens`, discard it.

Refused by `test_a_chunk_in_mid_prompt_emits_no_token`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.prepare_inputs


def prepare_inputs(requests: Any, output: Any, block_size: int) -> Any:
    inputs = right(requests, output, block_size)
    return inputs._replace(discard_request_mask=np.zeros(len(inputs.req_ids), bool))


solution.prepare_inputs = prepare_inputs


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
