"""A forced reset of the prefix cache while a result with drafts is in flight, and a worker that goes on.

The worker knows what it has sampled, and samples the next token behind that, whatever the scheduler makes of
its results. It learns a request's tokens anew where a plan starts it or resumes it, as vLLM's does.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from course.parity.traces import Arrival, Config, Parts, drafted, token, verified

INDEX = 4  # a request whose drafts are all right
PROMPT = [5] * 20
MAX_TOKENS = 24
RIGHT = [token(INDEX, len(PROMPT) + i) for i in range(MAX_TOKENS)]
ARRIVAL: Arrival = {
    "id": "a", "step": 0, "prompt": PROMPT, "max_tokens": MAX_TOKENS, "ignore_eos": True, "priority": 0,
    "abort": None,
}  # fmt: skip


def config(num_speculative_tokens: int) -> Config:
    """An EAGLE head with so many drafts; 0: none."""
    made: Config = {
        "block_size": 16, "num_blocks": 64, "max_num_seqs": 2, "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 0, "enable_prefix_caching": True, "max_model_len": 256,
        "policy": "fcfs",
    }  # fmt: skip
    if num_speculative_tokens:
        made["speculative_config"] = {
            "method": "eagle",
            "num_speculative_tokens": num_speculative_tokens,
        }
    return made


def text(parts: Parts, reset_before: int | None) -> list[int]:
    """The tokens that the request ends with; `reset_before`: the plan (from 1) that a reset comes before."""
    scheduler = parts.scheduler
    request = parts.make_request(ARRIVAL, 0)
    scheduler.add_request(request)
    in_flight: deque[tuple[Any, list[int] | None, bool]] = deque()
    worker: list[int] = []
    plans = 0
    while not request.is_finished():
        plans += 1
        if plans == reset_before:
            scheduler.reset_prefix_cache(reset_running_requests=True)
        plan = scheduler.schedule()
        starts = bool(plan.scheduled_new_reqs or plan.scheduled_cached_reqs.resumed_req_ids)
        known = list(request.all_token_ids) if starts else None
        in_flight.append((plan, known, not request.is_prefill_chunk))
        if len(in_flight) < 2:
            continue
        plan, known, samples = in_flight.popleft()
        if known is not None:
            worker = known
        ids = list(plan.num_scheduled_tokens)
        sampled: list[int] = []
        if ids and samples:
            num_drafts = len(plan.scheduled_spec_decode_tokens.get("a", ()))
            sampled = verified(INDEX, len(worker), drafted(INDEX, len(worker), num_drafts))
            worker = worker + sampled
        scheduler.update_from_output(plan, parts.make_output(ids, [list(sampled) for _ in ids]))
        assert plans < 200, "it never ends"
    return list(request.output_token_ids)
