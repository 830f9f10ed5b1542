"""Given for lab 03-03: steps as the engine made them, what a step costs on an A100, and a workload."""

from __future__ import annotations

from typing import Any, NamedTuple

from mini_vllm import EngineConfig
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import ModelRunnerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.sampling_params import SamplingParams

WEIGHTS_MS = 2 * 8_030_261_248 / 2039e9 * 1000
"""An A100 reads the weights of Llama-3-8B, in 16 bits, once (phase 00)."""
TOKEN_MS = 2 * 8_030_261_248 / 312e12 * 1000
"""And computes one token at its peak."""


class Step(NamedTuple):
    """One step.

    Attributes:
        tokens: how many tokens it computed for whom.
        sampled: who got a token of the answer at its end.
        arrived: who came since the step before.
    """

    tokens: dict[str, int]
    sampled: frozenset[str]
    arrived: frozenset[str]


def a100_ms(step: Step) -> float:
    """What a step takes on an A100 at its best, in ms: the longer of reading weights and computing."""
    return max(WEIGHTS_MS, TOKEN_MS * sum(step.tokens.values()))


class Arrival(NamedTuple):
    """Somebody who asks before a step: tokens of prompt, and tokens of answer."""

    name: str
    step: int
    num_prompt_tokens: int
    num_output_tokens: int


def serve(arrivals: list[Arrival], **settings: Any) -> list[Step]:
    """The steps that the scheduler makes of them. No model runs: which tokens come does not matter."""
    given: dict[str, Any] = {"num_gpu_blocks": 4000, "max_model_len": 20_000, "max_num_seqs": 128}
    given |= {"max_num_batched_tokens": 16_384, "enable_prefix_caching": False}
    config = EngineConfig(**(given | settings))
    scheduler = Scheduler(config)
    due = sorted(arrivals, key=lambda arrival: arrival.step)
    steps: list[Step] = []
    while due or scheduler.has_unfinished_requests():
        arrived = set()
        while due and due[0].step <= len(steps) + 1:
            arrival = due.pop(0)
            params = SamplingParams(max_tokens=arrival.num_output_tokens, ignore_eos=True)
            prompt = [1] * arrival.num_prompt_tokens
            scheduler.add_request(Request(arrival.name, prompt, params))
            arrived.add(arrival.name)
        plan = scheduler.schedule()
        names = list(plan.num_scheduled_tokens)
        requests = [scheduler.requests[name] for name in names]
        caught_up = [request.num_computed_tokens == request.num_tokens for request in requests]
        sampled = [[1] if done else [] for done in caught_up]
        index = {name: number for number, name in enumerate(names)}
        scheduler.update_from_output(plan, ModelRunnerOutput(names, index, sampled))
        got = frozenset(name for name, done in zip(names, caught_up, strict=True) if done)
        steps.append(Step(dict(plan.num_scheduled_tokens), got, frozenset(arrived)))
    return steps


def eve_and_fay(num_document_tokens: int = 256, **settings: Any) -> list[Step]:
    """Eve reads 40 tokens of answer; before step 8 Fay comes with a document, and wants 4 tokens."""
    arrivals = [Arrival("eve", 1, 9, 40), Arrival("fay", 8, num_document_tokens, 4)]
    return serve(arrivals, **settings)
