"""A request samples once its prompt is computed, so a resumed one samples what it already has.

The rule asks for all tokens, prompt and output. The two agree until a request is preempted after it
has sampled. Then its outputs are computed again, in chunks perhaps, and each chunk past the prompt
would sample a token that is there already. Compare `seq_lens` with the number of all its tokens.

Refused by `test_a_resumed_request_computes_its_outputs_again`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from course.learner.labs import load_solution

solution = load_solution(__file__)
right = solution.prepare_inputs


def prepare_inputs(requests: Any, output: Any, block_size: int) -> Any:
    inputs = right(requests, output, block_size)
    prompts = np.array([len(requests[req_id].prompt_token_ids) for req_id in inputs.req_ids])
    return inputs._replace(discard_request_mask=inputs.seq_lens < prompts)


solution.prepare_inputs = prepare_inputs


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
