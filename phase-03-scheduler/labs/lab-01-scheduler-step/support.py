"""Given for lab 03-01: people, a scheduler with people in it, and one step after the other."""

from __future__ import annotations

from collections.abc import Callable
from traceback import walk_tb
from types import FrameType
from typing import Any, TypeVar

from mini_vllm import EngineConfig
from mini_vllm.core import kv_cache_manager
from mini_vllm.core.request import Request
from mini_vllm.core.sched import scheduler as given
from mini_vllm.core.sched.output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.sampling_params import SamplingParams

T = TypeVar("T")


def make(lab: Any, **settings: Any) -> Any:
    """A scheduler of the graded file: 16 tokens a step, 8 seats, 99 usable blocks of 4 tokens."""
    given: dict[str, Any] = {"block_size": 4, "num_gpu_blocks": 100, "max_model_len": 64}
    given |= {"max_num_batched_tokens": 16, "max_num_seqs": 8}
    return lab.Scheduler(EngineConfig(**(given | settings)))


def come(scheduler: Any, **prompts: int) -> None:
    """People arrive, with so many tokens of prompt each, in this order."""
    for name, length in prompts.items():
        params = SamplingParams(max_tokens=30, ignore_eos=True)
        prompt = [3 + (len(scheduler.requests) * 7 + i) % 50 for i in range(length)]
        arrival_time = float(len(scheduler.requests))
        request = Request(name, prompt, params, arrival_time=arrival_time, block_size=4)
        scheduler.add_request(request)


def turn(scheduler: Any) -> SchedulerOutput:
    """Plan a step, and give a token to whoever has caught up."""
    plan = _plan(scheduler)
    names = list(plan.num_scheduled_tokens)
    requests = [scheduler.requests[name] for name in names]
    sampled = [[5] if r.num_computed_tokens == r.num_tokens else [] for r in requests]
    index = {name: number for number, name in enumerate(names)}
    scheduler.update_from_output(plan, ModelRunnerOutput(names, index, sampled))
    return plan


def explained(scheduler: Any, call: Callable[[], T]) -> T:
    """What `call` returns; where `schedule` stumbles over what the loops left, the error says over what."""
    try:
        return call()
    except KeyError as error:
        if _frames(error)[-1].f_code.co_filename != given.__file__:
            raise
        raise AssertionError(
            f"`schedule` makes the plan from the step, and finds no entry for {error} in "
            "`req_to_new_blocks`: whoever is served or admitted needs what `allocate_slots` gave"
        ) from error
    except ValueError as error:
        frames = _frames(error)
        if frames[-1].f_code.co_filename != kv_cache_manager.__file__:
            raise
        raise AssertionError(_too_few(frames)) from error
    except AssertionError as error:
        if error.args:
            raise
        runs, seats = len(scheduler.running), scheduler.max_num_running_reqs
        if runs > seats:
            raise AssertionError(f"{runs} people run, and there are {seats} seats") from error
        budget = scheduler.max_num_scheduled_tokens
        raise AssertionError(f"the plan holds more than the {budget} tokens of a step") from error


def _frames(error: BaseException) -> list[FrameType]:
    """From `explained` down to where it was raised."""
    return [frame for frame, _ in walk_tb(error.__traceback__)]


def _too_few(frames: list[FrameType]) -> str:
    """In words, the call of `allocate_slots` that was refused for its number of tokens."""
    request, num_new_tokens = (frames[-1].f_locals[name] for name in ("request", "num_new_tokens"))
    name = request.request_id
    said = f"allocate_slots is called with {num_new_tokens} tokens for {name}"
    made_by = [frame.f_locals for frame in frames if frame.f_code.co_filename == given.__file__]
    step = next((names["step"] for names in made_by if "step" in names), None)
    if step is not None and step.token_budget <= 0:
        return f"{said} when the step's budget is used up: {step.num_scheduled_tokens}"
    missing = request.num_tokens - request.num_computed_tokens
    return (
        f"{said}, who has {request.num_tokens} tokens, {request.num_computed_tokens} of them computed, and "
        f"so lacks {missing}"
    )


def _plan(scheduler: Any) -> SchedulerOutput:
    missing = {
        name: request.num_tokens - request.num_computed_tokens
        for name, request in scheduler.requests.items()
    }
    plan: SchedulerOutput = explained(scheduler, scheduler.schedule)
    for name, num_tokens in plan.num_scheduled_tokens.items():
        assert num_tokens <= missing[name], (
            f"{name} is behind by {missing[name]} tokens and gets {num_tokens}"
        )
    for request in scheduler.running:
        assert request.num_computed_tokens <= request.num_tokens, (
            f"{request.request_id} has {request.num_tokens} tokens, and {request.num_computed_tokens} "
            "count as computed: `schedule` moves that counter, so your loops do not"
        )
    return plan
