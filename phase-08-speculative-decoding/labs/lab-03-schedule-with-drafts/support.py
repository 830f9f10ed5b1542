"""Given for lab 08-03: people in a scheduler, and steps with drafts."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

from mini_vllm import EngineConfig
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput, SchedulerOutput
from mini_vllm.sampling_params import SamplingParams

EOS = 2


def make(lab: Any, method: str = "ngram", ahead: bool = False, **settings: Any) -> Any:
    """A scheduler of the graded file, k = 3: 64 tokens per step, 8 seats, 99 usable blocks of 4 tokens."""
    given: dict[str, Any] = {"block_size": 4, "num_gpu_blocks": 100, "max_model_len": 64}
    given |= {"max_num_batched_tokens": 64, "max_num_seqs": 8, "enable_prefix_caching": False}
    spec = {"method": method, "num_speculative_tokens": 3}
    if method != "ngram":
        spec["model"] = "a drafter"
    config = EngineConfig(**(given | settings), speculative_config=spec)
    return (lab.AsyncScheduler if ahead else lab.Scheduler)(config)


def come(scheduler: Any, name: str, num_prompt_tokens: int, want: int = 30, **more: Any) -> Request:
    """Somebody arrives, later than all before."""
    number = len(scheduler.requests)
    prompt = [3 + 100 * number + i for i in range(num_prompt_tokens)]
    params = SamplingParams(max_tokens=want, ignore_eos=False)
    params.update_from_generation_config({}, EOS)
    more = {"arrival_time": float(number), "block_size": 4} | more
    request = Request(name, prompt, params, **more)
    scheduler.add_request(request)
    return request


def propose(scheduler: Any, **drafts: list[int]) -> None:
    """What the drafter proposes for the next step.

    The method is named by a text: `course grade` takes a test that names a method to be about it, and most
    tests that propose drafts are about what becomes of them.
    """
    proposal = DraftTokenIds([*drafts], [*drafts.values()])
    methodcaller("update_draft_token_ids", proposal)(scheduler)


def take_in(scheduler: Any, plan: SchedulerOutput, **sampled: list[int]) -> dict[str, list[int]]:
    """Give a plan's result to the scheduler; what each user gets.

    Whoever is not named has all drafts rejected and samples a 5; an empty list samples nothing.
    """
    names = list(plan.num_scheduled_tokens)
    tokens = [list(sampled.get(name, [5])) for name in names]
    index = {name: number for number, name in enumerate(names)}
    news = scheduler.update_from_output(plan, ModelRunnerOutput(names, index, tokens))
    return {one.request_id: list(one.new_token_ids) for one in news}


def decoding(lab: Any, *names: str, length: int = 9, **settings: Any) -> Any:
    """People who have `length` tokens of prompt computed and one token sampled."""
    scheduler = make(lab, **settings)
    for name in names:
        come(scheduler, name, length)
    take_in(scheduler, scheduler.schedule())
    return scheduler


def counters(request: Request) -> tuple[int, int]:
    return request.num_tokens, request.num_computed_tokens


def blocks(scheduler: Any, name: str) -> int:
    return len(scheduler.kv_cache_manager.get_block_ids(name)[0])
