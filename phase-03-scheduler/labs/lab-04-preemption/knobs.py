"""Which setting helps a server that preempts all the time? One workload, one setting changed at a time.

    python phase-03-scheduler/labs/lab-04-preemption/knobs.py

24 people come, one or two a step, with prompts of 8 to 24 tokens, and want answers of 12 to 36. Blocks hold 4
tokens and prefix caching is off, unless a row says otherwise. No model runs.
"""

from __future__ import annotations

import itertools
import random
from typing import Any, NamedTuple

from mini_vllm import EngineConfig
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import ModelRunnerOutput
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.sampling_params import SamplingParams

NUM_PEOPLE, BLOCK_SIZE, MAX_MODEL_LEN = 24, 4, 64
SERVER = {"num_gpu_blocks": 61, "max_num_seqs": 16, "max_num_batched_tokens": 64}
ROWS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "90 blocks": {"num_gpu_blocks": 91},
    "120 blocks": {"num_gpu_blocks": 121},
    "180 blocks": {"num_gpu_blocks": 181},
    "max_num_seqs=8": {"max_num_seqs": 8},
    "max_num_seqs=6": {"max_num_seqs": 6},
    "max_num_seqs=5": {"max_num_seqs": 5},
    "max_num_batched_tokens=32": {"max_num_batched_tokens": 32},
    "max_num_batched_tokens=16": {"max_num_batched_tokens": 16},
    "prefix caching": {"enable_prefix_caching": True},
}


class Outcome(NamedTuple):
    """What a run came to.

    Attributes:
        preempted: how often somebody lost all blocks.
        twice: tokens computed beyond what was needed.
        steps: from the first arrival to the last token.
        first_token: steps from arrival to first token, averaged over the people.
        longest_gap: most steps that somebody waited between two tokens.
    """

    preempted: int
    twice: int
    steps: int
    first_token: float
    longest_gap: int


def people() -> list[tuple[int, Request]]:
    """Who comes before which step."""
    rng = random.Random(1)
    step, found = 1, []
    for number in range(NUM_PEOPLE):
        prompt = [100 * number + place for place in range(rng.randint(8, 24))]
        params = SamplingParams(max_tokens=rng.randint(12, 36), ignore_eos=True)
        name, time = f"p{number:02}", float(number)
        found.append(
            (step, Request(name, prompt, params, arrival_time=time, block_size=BLOCK_SIZE))
        )
        step += rng.choice((0, 0, 1, 2))
    return found


def outcome(**settings: Any) -> Outcome:
    """The workload on the server with these settings changed."""
    given: dict[str, Any] = {"block_size": BLOCK_SIZE, "max_model_len": MAX_MODEL_LEN} | SERVER
    given |= {"enable_prefix_caching": False} | settings
    scheduler = Scheduler(EngineConfig(**given))
    due = people()
    came = {request.request_id: step for step, request in due}
    needed = sum(r.num_prompt_tokens + r.max_tokens - 1 for _, r in due)
    got: dict[str, list[int]] = {name: [] for name in came}
    step = computed = 0
    while due or scheduler.has_unfinished_requests():
        step += 1
        while due and due[0][0] <= step:
            scheduler.add_request(due.pop(0)[1])
        plan = scheduler.schedule()
        computed += plan.total_num_scheduled_tokens
        names = list(plan.num_scheduled_tokens)
        served = [scheduler.requests[name] for name in names]
        sampled = [[2] if r.num_computed_tokens == r.num_tokens else [] for r in served]
        for name, token in zip(names, sampled, strict=True):
            got[name] += [step] * len(token)
        index = {name: number for number, name in enumerate(names)}
        scheduler.update_from_output(plan, ModelRunnerOutput(names, index, sampled))
    waits = [steps[0] - came[name] + 1 for name, steps in got.items()]
    gaps = [b - a for steps in got.values() for a, b in itertools.pairwise(steps)]
    twice = computed - needed
    return Outcome(scheduler.num_preemptions, twice, step, sum(waits) / len(waits), max(gaps))


def table() -> None:
    """Print what each setting changes."""
    print(f"{'setting':26}preempted  twice  steps  first token  longest gap")
    for name, settings in ROWS.items():
        o = outcome(**settings)
        row = (
            f"{o.preempted:9}  {o.twice:5}  {o.steps:5}  {o.first_token:11.1f}  {o.longest_gap:11}"
        )
        print(f"{name:26}{row}")


if __name__ == "__main__":
    table()
