"""Given for lab 03-05: workloads, the real engine on them, and a scheduler with people in it."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.parts import EngineParts
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.model_loader import load_model
from mini_vllm.models.llama import LlamaForCausalLM


class Served(NamedTuple):
    """What came of a request.

    Attributes:
        computed: tokens that all steps together computed for it, from the plans.
        cached: `RequestOutput.num_cached_tokens`.
        answer: token ids.
    """

    computed: int
    cached: int
    answer: list[int]


def words(seed: int, count: int) -> tuple[int, ...]:
    """So many token ids; the first is the seed's own, so that two seeds share no beginning."""
    rng = random.Random(seed)
    return (3 + seed, *(rng.randint(100, 250) for _ in range(count - 1)))


def system_and_tail(lab: Any, system: int = 64, tail: int = 1, people: int = 8) -> list[Any]:
    """People who share a system prompt, each with a tail of their own and 4 tokens of answer."""
    shared = words(0, system)
    return [lab.Ask(shared + words(1 + i, tail), 4) for i in range(people)]


@functools.cache
def model() -> LlamaForCausalLM:
    return load_model(DEFAULT_MODEL)


def make_engine(scheduler: Any = None, **settings: Any) -> LLMEngine:
    """An engine on the shipped model with 400 usable blocks of 4 tokens."""
    given: dict[str, Any] = {"block_size": 4, "num_gpu_blocks": 401, "max_model_len": 512}
    parts = EngineParts() if scheduler is None else EngineParts(scheduler=scheduler)
    return LLMEngine(model=model(), config=EngineConfig(**(given | settings)), parts=parts)


def serve(engine: LLMEngine, workload: Iterable[Any]) -> list[Served]:
    """All ask at once; what came of each, in order."""
    computed: dict[str, int] = {}
    plans: list[SchedulerOutput] = []

    def observe(record: StepRecord) -> None:
        plans.append(record.scheduler_output)

    engine.engine_core.step_observers.append(observe)
    for number, ask in enumerate(workload):
        params = SamplingParams(temperature=0, max_tokens=ask.num_answer_tokens, ignore_eos=True)
        prompt: dict[str, Any] = {"prompt_token_ids": list(ask.prompt)}
        if ask.salt is not None:
            prompt["cache_salt"] = ask.salt
        engine.add_request(str(number), prompt, params)  # type: ignore[arg-type]
    last = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            last[output.request_id] = output
    engine.engine_core.step_observers.remove(observe)
    for plan in plans:
        for name, tokens in plan.num_scheduled_tokens.items():
            computed[name] = computed.get(name, 0) + tokens
    return [
        Served(computed[name], last[name].num_cached_tokens or 0, list(answer.token_ids))
        for name in map(str, range(len(computed)))
        for answer in last[name].outputs
    ]


def come(
    scheduler: Any, name: str, prompt: Sequence[int], max_tokens: int = 30, **more: Any
) -> Request:
    """Somebody arrives, and wants so many tokens of answer."""
    size = scheduler.config.block_size
    given: dict[str, Any] = {"arrival_time": float(len(scheduler.requests)), "block_size": size}
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    request = Request(name, list(prompt), params, **(given | more))
    scheduler.add_request(request)
    return request


def turn(scheduler: Any) -> SchedulerOutput:
    """Plan a step, and give a token to whoever has caught up, always the same one."""
    plan: SchedulerOutput = scheduler.schedule()
    names = list(plan.num_scheduled_tokens)
    requests = [scheduler.requests[name] for name in names]
    sampled = [[5] if r.num_computed_tokens == r.num_tokens else [] for r in requests]
    index = {name: number for number, name in enumerate(names)}
    scheduler.update_from_output(plan, ModelRunnerOutput(names, index, sampled))
    return plan


def count(scheduler: Any, workload: Sequence[Any]) -> list[Served]:
    """As `serve`, from the plans alone: no model runs, and every token of an answer is 5."""
    requests = [
        come(scheduler, str(number), ask.prompt, ask.num_answer_tokens, cache_salt=ask.salt)
        for number, ask in enumerate(workload)
    ]
    computed = dict.fromkeys(map(str, range(len(workload))), 0)
    while scheduler.has_unfinished_requests():
        for name, tokens in turn(scheduler).num_scheduled_tokens.items():
            computed[name] += tokens
    return [
        Served(computed[request.request_id], request.num_cached_tokens, request.output_token_ids)
        for request in requests
    ]


def make_scheduler(scheduler: Any = Scheduler, **settings: Any) -> Any:
    """The engine's scheduler, or another, with 72 tokens a step, 8 seats, 99 usable blocks of 4."""
    given: dict[str, Any] = {"block_size": 4, "num_gpu_blocks": 100, "max_model_len": 72}
    given |= {"max_num_batched_tokens": 72, "max_num_seqs": 8}
    return scheduler(EngineConfig(**(given | settings)))
