"""Given for lab 08-03: people in a scheduler, steps with drafts, and recorded workloads."""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from course.parity.decisions import engine_config, mini_parts
from course.parity.traces import Parts
from course.parity.traces import Run as PlainRun
from course.parity.traces import token as next_token
from mini_vllm import EngineConfig
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput, SchedulerOutput
from mini_vllm.sampling_params import SamplingParams

TRACES = Path(__file__).with_name("traces.jsonl.gz")
EOS = 2
NEVER = 99  # a token that nobody samples

# ---- by hand ---------------------------------------------------------------------------------------


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
    """What the drafter proposes for the next step."""
    scheduler.update_draft_token_ids(DraftTokenIds([*drafts], [*drafts.values()]))


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
    return len(scheduler.kv_cache_manager.get_block_ids(name))


# ---- recorded workloads ----------------------------------------------------------------------------


def drafted(index: int, pos: int, spec: dict[str, Any]) -> list[int]:
    """What is drafted for the request with this index when it has `pos` tokens: a pure function.

    The token that will come, with a chance of `acceptance` per cent at each position, else another. An
    n-gram drafter finds nothing now and then, or only a few.
    """
    k = spec["num_speculative_tokens"]
    count = (index * 7 + pos * 3) % (k + 2) if spec["method"] == "ngram" else k
    right = [(index * 31 + (pos + j) * 57) % 100 < spec["acceptance"] for j in range(min(count, k))]
    return [next_token(index, pos + j) if ok else NEVER for j, ok in enumerate(right)]


class Run(PlainRun):
    """A workload going through a scheduler with drafts: take the calls from `calls`.

    `ahead`: with two plans in flight, as a GPU runs it by default at the pin; else one step at a time.
    """

    def __init__(self, work: Any, parts: Parts) -> None:
        super().__init__(work, parts)
        self.spec = work["speculative"]
        self.ahead = work["ahead"]
        self.queue: deque[tuple[Any, dict[str, bool]]] = deque()

    @property
    def done(self) -> bool:
        return not (self._pending or self.parts.scheduler.has_requests() or self.queue)

    def calls(self) -> Iterator[dict[str, Any]]:
        """Every call of the scheduler and what it decided, until nothing is left to do."""
        while not self.done:
            self.arrive()
            self.step += 1
            if self.parts.scheduler.has_requests():
                plan = self._plan()
                yield plan
                if self.ahead and plan["scheduled"] and len(self.queue) < 2:
                    continue
            if self.queue:
                yield self._update()

    def _plan(self) -> dict[str, Any]:
        scheduler, live = self.parts.scheduler, self.live
        output = scheduler.schedule()
        ids = list(output.num_scheduled_tokens)
        self.queue.append((output, {i: not live[i].is_prefill_chunk for i in ids}))
        drafts = output.scheduled_spec_decode_tokens
        return {
            "call": "schedule",
            "step": self.step - 1,
            "preempted": sorted(output.preempted_req_ids or ()),
            "scheduled": dict(output.num_scheduled_tokens),
            "drafts": {i: list(drafts[i]) for i in ids if i in drafts},
            "blocks": {i: len(self.parts.block_ids(i)) for i in ids},
            "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }

    def _update(self) -> dict[str, Any]:
        scheduler, live = self.parts.scheduler, self.live
        output, samples = self.queue.popleft()
        sampled = []
        for i, samples_now in samples.items():
            drafts = list(output.scheduled_spec_decode_tokens.get(i, ()))
            index, pos = self._index[i], live[i].num_tokens
            if self.ahead:  # the worker's own, of which the plan says how many
                drafts = drafted(index, pos, self.spec)[: len(drafts)]
            tokens: list[int] = []
            if samples_now:
                tokens = [next_token(index, pos)]
                while len(tokens) <= len(drafts) and drafts[len(tokens) - 1] == tokens[-1]:
                    tokens.append(next_token(index, pos + len(tokens)))
            sampled.append(tokens)
        scheduler.update_from_output(output, self.parts.make_output(list(samples), sampled))
        if not self.ahead:
            proposed = [drafted(self._index[i], live[i].num_tokens, self.spec) for i in samples]
            scheduler.update_draft_token_ids(DraftTokenIds(list(samples), proposed))
        return {
            "call": "update",
            "step": self.step - 1,
            "finished": {i: live[i].status.name for i in samples if live[i].is_finished()},
            "running": [request.request_id for request in scheduler.running],
            "computed": {i: [live[i].num_tokens, live[i].num_computed_tokens] for i in samples},
            "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }


def parts_of(work: Any, lab: Any) -> Parts:
    """The graded file's scheduler for a workload."""
    spec = {name: value for name, value in work["speculative"].items() if name != "acceptance"}
    config = replace(engine_config(work["config"]), speculative_config=spec)
    scheduler_class = lab.AsyncScheduler if work["ahead"] else lab.Scheduler
    return mini_parts(work["config"], lambda _: scheduler_class(config))


def read_traces() -> list[dict[str, Any]]:
    """What vLLM decided; `record.py` has made it."""
    return [json.loads(line) for line in gzip.decompress(TRACES.read_bytes()).splitlines()]


FIELDS = {
    "preempted": "who is preempted",
    "scheduled": "how many tokens each gets, in this order",
    "drafts": "which drafts found room (-1: only the worker knows it)",
    "blocks": "how many blocks each holds right after schedule()",
    "finished": "who has finished, and how",
    "running": "who runs",
    "computed": "num_tokens and num_computed_tokens of each after the update",
    "free": "how many blocks are free",
}


def first_difference(trace: Any, lab: Any) -> str:
    """Where the graded scheduler first leaves a trace, for a sentence; "" if nowhere."""
    run = Run(trace, parts_of(trace, lab))
    spec = trace["speculative"]
    where = (
        f"workload {trace['seed']} ({'async' if trace['ahead'] else 'sync'}, {trace['config']['policy']}, "
        f"{spec['method']}, k={spec['num_speculative_tokens']})"
    )
    calls = run.calls()
    before = "nothing"
    for expected in trace["calls"]:
        got = next(calls, None)
        if got is None:
            return f"{where}: yours has nothing more to do, and vLLM goes on at step {expected['step']}"
        for name, what in FIELDS.items():
            a, b = expected.get(name), got.get(name)
            if a != b or (name == "scheduled" and a is not None and list(a) != list(b)):
                return (
                    f"{where}, step {expected['step']}, after {expected['call']}: {what}: vLLM {a}, yours "
                    f"{b}. Before that: {before}"
                )
        before = f"{expected['call']} {expected.get('scheduled') or expected.get('computed')}"
    said = run.outputs()
    if said != trace["outputs"]:
        return f"{where}: the users got {trace['outputs']}, yours {said}"
    return ""
