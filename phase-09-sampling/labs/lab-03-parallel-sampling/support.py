"""What the lab's tests and scripts share: requests on the engine, and what it did with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.model_loader import get_model
from mini_vllm.sampling_params import RequestOutputKind

RECORDED = Path(__file__).resolve().parent / "recorded.json"
SEED, NUM_TOKENS = 7, 5
STOPS = list(range(0, 264, 3))


@dataclass(frozen=True)
class Played:
    """What an engine made of a case: by child, in the order of their indices."""

    tokens: list[list[int]]
    cached: list[int]
    first_step: list[int]


def prompt_of(length: int) -> list[int]:
    """That many tokens; a shorter prompt is the beginning of a longer one."""
    return [1, *(5 + (3 * i * i + 11 * i) % 120 for i in range(length - 1))]


def params(n: int = 1, seed: int | None = SEED, **fields: Any) -> dict[str, Any]:
    """What to make `SamplingParams` of, here and in vLLM."""
    usual = {"temperature": 4.0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    return {**usual, "n": n, "seed": seed, **fields}


@cache
def _model() -> Any:
    return get_model(str(DEFAULT_MODEL), EngineConfig().attention, None)


def make_engine(max_num_seqs: int = 8, max_num_batched_tokens: int = 512) -> LLMEngine:
    """An engine with the shipped model, scheduling synchronously, whose cache is empty."""
    config = EngineConfig(
        block_size=16,
        max_model_len=256,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_gpu_blocks=128,
    )
    return LLMEngine(_model(), config)


def play_on(engine: Any, scheduler: Any, make_params: Callable[..., Any], case: Any) -> Played:
    """A case on an engine that is `mini_vllm`'s or vLLM's."""
    prompt = {"prompt_token_ids": prompt_of(case.num_prompt_tokens)}
    if case.served_before:
        engine.add_request("before", prompt, make_params(**params(max_tokens=1)))
        while engine.has_unfinished_requests():
            engine.step()
    children: list[Any] = []
    steps: list[list[int]] = []
    add, schedule = scheduler.add_request, scheduler.schedule

    def noted(request: Any) -> Any:
        # Where vLLM counts what a prompt was spared; ours stands in the request itself.
        children.append(getattr(request, "prefill_stats", request))
        return add(request)

    def counted(*args: Any) -> Any:
        scheduled = schedule(*args)
        steps.append(list(scheduled.num_scheduled_tokens.values()))
        return scheduled

    scheduler.add_request, scheduler.schedule = noted, counted
    fields = params(case.n, prompt_logprobs=0 if case.prompt_logprobs else None)
    engine.add_request("mine", prompt, make_params(**fields))
    last: dict[int, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            last |= {one.index: list(one.token_ids) for one in output.outputs}
    tokens = [last[index] for index in sorted(last)]
    return Played(tokens, [one.num_cached_tokens for one in children], steps[0])


@dataclass(frozen=True)
class Asked:
    """A learner's `Case`, for those who ask an engine without one."""

    num_prompt_tokens: int
    n: int
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    served_before: bool = False
    prompt_logprobs: bool = False


@cache
def play(fields: tuple[tuple[str, Any], ...]) -> Played:
    """A case, given by its fields, on `mini_vllm`."""
    case = Asked(**dict(fields))
    engine = make_engine(case.max_num_seqs, case.max_num_batched_tokens)
    return play_on(engine, engine.engine_core.scheduler, SamplingParams, case)


def say(*asked: SamplingParams, length: int = 40) -> list[list[list[int]]]:
    """The tokens of requests with one prompt, served together: for each request those of its children."""
    engine = make_engine()
    for number, one in enumerate(asked):
        engine.add_request(str(number), {"prompt_token_ids": prompt_of(length)}, one)
    tokens: list[dict[int, list[int]]] = [{} for _ in asked]
    while engine.has_unfinished_requests():
        for output in engine.step():
            for each in output.outputs:
                tokens[int(output.request_id)][each.index] = list(each.token_ids)
    return [[said[index] for index in sorted(said)] for said in tokens]


def streamed(kind: RequestOutputKind, n: int, lab: ModuleType | None = None) -> list[Any]:
    """The outputs of a request with `n` completions, step by step, and when it was called finished.

    Without a lab the engine's own; with one, n ordinary requests merged by its `Parent`. Children stop at
    token ids of their own accord, so they finish in different steps.
    """
    engine = make_engine()
    asked = SamplingParams(**params(n, max_tokens=9, output_kind=kind, stop_token_ids=STOPS))
    prompt = prompt_of(40)
    if lab is None:
        engine.add_request("mine", prompt, asked)
    else:
        parent = lab.Parent(n, kind)
        for index in range(n):
            engine.add_request(str(index), prompt, lab.child_params(asked, index))
    found: list[Any] = []
    step = 0
    while engine.has_unfinished_requests():
        step += 1
        for output in engine.step():
            outputs, finished = output.outputs, output.finished
            if lab is not None:
                outputs[0].index = int(output.request_id)
                outputs, finished = parent.take(outputs[0])
            if outputs or finished:
                found.append((step, [asdict(one) for one in outputs], finished))
    return found


def recorded() -> list[dict[str, Any]]:
    """What vLLM answered: a case's fields under `case`, and `tokens`, `cached` and `first_step`."""
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return list(found["played"])
