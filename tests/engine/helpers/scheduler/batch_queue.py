"""vLLM's own `AsyncScheduler` in its own `step_with_batch_queue`, with a pretend device.

What runs on a GPU by default at the pin, `vllm/v1/engine/core.py:469 EngineCore.step_with_batch_queue`,
needs no GPU to be watched: it hands plans to an executor and takes results from it. The executor
here keeps a plan until its result is asked for, as a slow device would, and samples what it is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from course.parity.record import vllm_parts
from course.parity.traces import Arrival, Config

CONFIG: Config = {
    "block_size": 4,
    "num_blocks": 20,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "long_prefill_token_threshold": 0,
    "enable_prefix_caching": False,
    "max_model_len": 64,
    "policy": "fcfs",
}
Sample = Callable[[str, int], int]
"""(request id, how many tokens of answer it has) -> the next one."""


def arrival(name: str, prompt: int, max_tokens: int, ignore_eos: bool = True) -> Arrival:
    return {
        "id": name,
        "prompt": list(range(10, 10 + prompt)),
        "max_tokens": max_tokens,
        "ignore_eos": ignore_eos,
        "priority": 0,
    }  # type: ignore[typeddict-item]


@dataclass
class Plan:
    """A plan, and what was given to the device before its result came back.

    Attributes:
        tokens: request id -> tokens of this step.
        blocks: request id -> the whole block table, as the worker would know it.
        taken_in: plans whose results had been taken in when this one was made.
        wasted: ids in it whose result is dropped, because they have ended since.
    """

    number: int
    tokens: dict[str, int]
    blocks: dict[str, list[int]]
    taken_in: int
    wasted: list[str] = field(default_factory=list)


class Later(Future):  # type: ignore[type-arg]
    """A result that is there when somebody waits for it, and not before."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self._make = make

    def done(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> Any:
        return self._make()


def play(config: Config, arrivals: dict[int, list[Arrival]], sample: Sample) -> list[Plan]:
    """Run the requests, which arrive before turns (from 0), until nothing is left to do."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

    parts = vllm_parts(config)
    plain: Any = parts.scheduler
    scheduler = AsyncScheduler(
        vllm_config=plain.vllm_config,
        kv_cache_config=plain.kv_cache_config,
        structured_output_manager=plain.structured_output_manager,
        block_size=config["block_size"],
        log_stats=False,
    )
    plans: list[Plan] = []
    requests: dict[str, Any] = {}
    results = 0

    class Device:
        """An executor: one worker, which carries plans out in the order in which they come."""

        def execute_model(self, plan: Any, non_block: bool) -> Any:
            self.plan = plan
            ids_of = scheduler.kv_cache_manager.get_block_ids
            tables = {name: list(ids_of(name)[0]) for name in plan.num_scheduled_tokens}
            plans.append(Plan(len(plans), dict(plan.num_scheduled_tokens), tables, results))
            future: Any = Future()
            future.set_result(None if plan.num_scheduled_tokens else EMPTY_MODEL_RUNNER_OUTPUT)
            return future

        def sample_tokens(self, grammar: Any, non_block: bool) -> Any:
            mine, ids = plans[-1], list(self.plan.num_scheduled_tokens)
            ends = {name: requests[name].num_computed_tokens for name in ids}

            def compute() -> Any:
                mine.wasted = [name for name in ids if requests[name].is_finished()]
                made = [ends[name] - requests[name].num_prompt_tokens for name in ids]
                sampled = [[sample(n, m)] if m >= 0 else [] for n, m in zip(ids, made, strict=True)]
                return parts.make_output(ids, sampled)

            return Later(compute)

    update = scheduler.update_from_output

    def take_in(plan: Any, output: Any) -> Any:
        nonlocal results
        results += 1
        return update(plan, output)

    scheduler.update_from_output = take_in  # type: ignore[method-assign]
    core: Any = SimpleNamespace(
        scheduler=scheduler,
        batch_queue=deque(maxlen=2),
        batch_queue_size=2,
        model_executor=Device(),
        is_ec_consumer=True,
        is_pooling_model=False,
        use_spec_decode=False,
        log_error_detail=lambda plan: nullcontext(),
        log_iteration_details=lambda plan: nullcontext(),
        _process_aborts_queue=lambda: None,
    )
    for turn in range(200):
        for one in arrivals.get(turn, []):
            requests[one["id"]] = parts.make_request(one, turn)
            scheduler.add_request(requests[one["id"]])
        if not scheduler.has_requests() and not core.batch_queue and turn > max(arrivals):
            return plans
        EngineCore.step_with_batch_queue(core)
    raise AssertionError("200 turns, and the requests are not through")
