"""`reset_prefix_cache(reset_running_requests=True)` twice, with plans in flight.

vLLM 0.22.1 notes in the request how many of its results are void, and a second reset overwrites the note of
the first. So a void result is taken for a sampled token, and the count of placeholders, which that token was
to fill, falls below zero.
"""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm.core.request import Request
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.output import ModelRunnerOutput
from tests.engine.helpers.engine.workloads import make_request, make_scheduler

PROMPT = [11, 12, 13, 14, 15]


def two_resets(scheduler: Any, request: Any, make_output: Any) -> list[Any]:
    """A reset with plans 1 and 2 in flight; another with 2 and 3. The results of 1 to 4, in order."""
    in_flight: list[Any] = []
    results: list[Any] = []

    def plan() -> None:
        in_flight.append(scheduler.schedule())

    def take_in() -> None:
        ids = list(in_flight[0].num_scheduled_tokens)
        sampled = [[100 + len(results)] for _ in ids]
        results.append(scheduler.update_from_output(in_flight.pop(0), make_output(ids, sampled)))

    scheduler.add_request(request)
    plan()
    plan()
    scheduler.reset_prefix_cache(reset_running_requests=True)
    take_in()
    plan()
    scheduler.reset_prefix_cache(reset_running_requests=True)
    take_in()
    plan()
    take_in()
    take_in()
    return results


def test_the_results_of_three_plans_are_void_and_the_fourth_counts() -> None:
    scheduler = make_scheduler(num_gpu_blocks=20, block_size=4, async_scheduling=True)
    assert isinstance(scheduler, AsyncScheduler)
    request: Request = make_request(scheduler, "a", PROMPT, max_tokens=9)

    def make_output(ids: list[str], sampled: list[list[int]]) -> ModelRunnerOutput:
        return ModelRunnerOutput(ids, {one: i for i, one in enumerate(ids)}, sampled)

    results = two_resets(scheduler, request, make_output)
    assert [[one.new_token_ids for one in news] for news in results] == [[], [], [], [[103]]]
    assert request.output_token_ids == [103]
    assert request.num_output_placeholders == 0
    assert not scheduler.async_tokens_to_discard


@pytest.mark.vllm
def test_vllms_scheduler_dies() -> None:
    from course.parity.record import vllm_parts

    parts = vllm_parts(
        {
            "block_size": 4, "num_blocks": 20, "max_num_seqs": 2, "max_num_batched_tokens": 64,
            "long_prefill_token_threshold": 0, "enable_prefix_caching": True, "max_model_len": 64,
            "policy": "fcfs",
        },
        async_scheduling=True,
    )  # fmt: skip
    arrival: Any = {
        "id": "a", "prompt": PROMPT, "step": 0, "priority": 0, "max_tokens": 9, "ignore_eos": True,
    }  # fmt: skip
    request = parts.make_request(arrival, 0)
    with pytest.raises(AssertionError):
        two_resets(parts.scheduler, request, parts.make_output)
    assert request.num_output_placeholders == -1
    assert next(iter(request.output_token_ids)) == 102, "the third plan's result, which was void"
