"""Given: the steps of a night and a morning, as `mini_vllm`'s scheduler makes them.

    python steps.py          # how many steps have how many tokens

Kim asks three questions, alone. From step 900 on, 33 people ask three questions each, and in between Lou
sends a document. No model runs, because which tokens come does not matter here, only how many.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from mini_vllm import EngineConfig
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import ModelRunnerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.sampling_params import SamplingParams


class Step(NamedTuple):
    """One step.

    Attributes:
        num_tokens: tokens that it computed.
        num_reqs: requests that they were of.
        most: most tokens of one request.
    """

    num_tokens: int
    num_reqs: int
    most: int


class Arrival(NamedTuple):
    """A question: before which step it comes, tokens of its prompt, tokens of its answer."""

    step: int
    num_prompt_tokens: int
    num_output_tokens: int


def arrivals(seed: int = 4) -> list[Arrival]:
    """Who comes when. Lou's document is the one of 3,000 tokens."""
    rng = np.random.default_rng(seed)
    kim = [Arrival(step, 40, 290) for step in (1, 300, 600)]
    crowd = [
        Arrival(
            int(rng.integers(900, 2000)), int(rng.integers(20, 400)), int(rng.integers(60, 500))
        )
        for _ in range(99)
    ]
    return sorted([*kim, *crowd, Arrival(1500, 3000, 200)])


def serve(due: list[Arrival], **settings: Any) -> list[Step]:
    """The steps that the scheduler makes of them, until the last answer is out."""
    given: dict[str, Any] = {"num_gpu_blocks": 8000, "max_model_len": 8192, "max_num_seqs": 256}
    given |= {"max_num_batched_tokens": 8192, "enable_prefix_caching": False}
    scheduler = Scheduler(EngineConfig(**(given | settings)))
    due = list(due)
    steps: list[Step] = []
    turn = 0
    while due or scheduler.has_unfinished_requests():
        turn += 1
        while due and due[0].step <= turn:
            one = due.pop(0)
            params = SamplingParams(max_tokens=one.num_output_tokens, ignore_eos=True)
            scheduler.add_request(Request(f"r{len(due)}", [1] * one.num_prompt_tokens, params))
        plan = scheduler.schedule()
        counts = plan.num_scheduled_tokens
        if not counts:
            continue  # nobody is there
        steps.append(Step(sum(counts.values()), len(counts), max(counts.values())))
        requests = [scheduler.requests[name] for name in counts]
        sampled = [[1] if one.num_computed_tokens == one.num_tokens else [] for one in requests]
        index = {name: i for i, name in enumerate(counts)}
        scheduler.update_from_output(plan, ModelRunnerOutput(list(counts), index, sampled))
    return steps


def night() -> list[Step]:
    """Kim's night, and the morning."""
    return serve(arrivals())


def main() -> None:
    steps = night()
    alone = sum(step.num_tokens == 1 for step in steps)
    decodes = Counter(step.num_reqs for step in steps if step.most == 1)
    mixed = [step.num_tokens for step in steps if step.most > 1]
    print(f"{len(steps)} steps, {alone} of one token, {len(mixed)} with a prompt")
    print(f"decodes: 1 to {max(decodes)} requests, most often {decodes.most_common(4)[1:]}")
    above = sum(num_tokens > 512 for num_tokens in mixed)
    print(f"with a prompt: {min(mixed)} to {max(mixed)} tokens, {above} of them above 512")


if __name__ == "__main__":
    main()
