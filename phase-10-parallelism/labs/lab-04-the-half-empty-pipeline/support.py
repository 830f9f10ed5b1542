"""What the lab's tests and scripts share: workloads, stages on paper, and an engine with the lab's own queue.

The stages are on paper: a step is computed at once, in this process, and each stage is said to be busy for
as many ticks as the step costs. A result can be had when the last stage has finished.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.config.engine import DEFAULT_MODEL
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.parts import EngineParts
from mini_vllm.executor.abstract import ExecuteFuture, Executor
from mini_vllm.executor.uniproc_executor import UniProcExecutor
from mini_vllm.model_loader import get_model

RECORDED = Path(__file__).resolve().parent / "recorded.json"
NAMES = ("ada", "bo", "cy", "eve", "gil", "noor")
Cost = Callable[[int], int]
COSTS: dict[str, Cost] = {"flat": lambda tokens: 1, "per token": lambda tokens: tokens}
"""Ticks that a step keeps each stage busy: what reading the weights takes, or what the arithmetic takes."""
TURNS = 2_000


@dataclass(frozen=True)
class Workload:
    """Requests, and the server that they come to.

    Attributes:
        prompts: a prompt's length for each request.
        max_tokens: how many tokens each is to get; one number is for all.
        apart: the next request comes a step later; else all come together.
        first: so many come first, and the others together two steps later; 0 is all.
        stages: of the pipeline.
    """

    prompts: tuple[int, ...]
    max_tokens: tuple[int, ...] = (8,)
    apart: bool = False
    first: int = 0
    stages: int = 2
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 256

    def lengths(self) -> list[tuple[int, int]]:
        """Of each request the tokens of its prompt, and how many it is to get."""
        wanted = self.max_tokens * (len(self.prompts) if len(self.max_tokens) == 1 else 1)
        return list(zip(self.prompts, wanted, strict=True))

    def requests(self) -> list[tuple[str, list[int], dict[str, Any]]]:
        """Name, prompt and sampling parameters of each request."""
        return [
            (name, prompt_of(length, i), {"temperature": 0, "max_tokens": n, "ignore_eos": True})
            for i, (name, (length, n)) in enumerate(zip(NAMES, self.lengths(), strict=False))
        ]


WORKLOADS: dict[str, Workload] = {
    "one": Workload((4,)),
    "two": Workload((4, 4)),
    "two apart": Workload((4, 4), apart=True),
    "four": Workload((4, 4, 4, 4)),
    "four apart": Workload((4, 4, 4, 4), apart=True),
    "four unequal": Workload((4, 4, 4, 4), (4, 4, 12, 12)),
    "four, 2 slots": Workload((4, 4, 4, 4), max_num_seqs=2),
    "four, budget 8": Workload((4, 4, 4, 4), max_num_batched_tokens=8),
    "a long prompt": Workload((96,), max_num_batched_tokens=32),
    "long prompts": Workload((24, 24, 24, 24), max_num_batched_tokens=32),
    "one, 4 stages": Workload((4,), stages=4),
    "four, 4 stages": Workload((4, 4, 4, 4), stages=4),
    "four apart, 4 stages": Workload((4, 4, 4, 4), apart=True, stages=4),
}


@dataclass
class Played:
    """What an engine did.

    Attributes:
        schedules: of each call of `schedule()` how many schedules were in flight before it, and the tokens
            that it gave to each request.
        tokens: of each request.
        busy: of each stage the steps that it worked on: number, first tick, the tick after the last. Steps
            are numbered from 0, and only those with tokens count.
        ticks: until the last token was there.
    """

    schedules: list[tuple[int, dict[str, int]]]
    tokens: dict[str, list[int]]
    busy: list[list[tuple[int, int, int]]] = field(default_factory=list)
    ticks: int = 0

    @property
    def empty(self) -> int:
        """Schedules without a token."""
        return sum(not given for _, given in self.schedules)

    def pattern(self) -> list[list[Any]]:
        """As `recorded.json` has it."""
        return [[in_flight, given] for in_flight, given in self.schedules]


def recorded() -> dict[str, dict[str, Any]]:
    """What real vLLM did with each of `WORKLOADS`: `schedules` and `tokens`."""
    found: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text("utf-8"))["played"]
    return found


def prompt_of(length: int, which: int) -> list[int]:
    """That many tokens, other ones for each request."""
    return [1, *(5 + (3 * i * i + 11 * i + 37 * which) % 120 for i in range(length - 1))]


# ---- stages on paper -----------------------------------------------------------------------------


class _Result(ExecuteFuture):
    """There when it is asked for and not before, as vLLM's own are
    (`vllm/v1/executor/multiproc_executor.py:69 FutureWrapper`). Asking waits for its tick."""

    def __init__(self, stages: StagesOnPaper, value: Any, tick: int) -> None:
        super().__init__()
        self._stages, self._value, self._tick = stages, value, tick

    def result(self, timeout: float | None = None) -> Any:
        self._stages.now = max(self._stages.now, self._tick)
        if not self.done():
            self.set_result(self._value)
        return self._value


class StagesOnPaper(Executor):
    """Carries steps out as a pipeline of `stages` would, by the clock `now`.

    Attributes:
        now: the tick. Only waiting for a result moves it.
        busy: see `Played`.
    """

    def __init__(self, executor: UniProcExecutor, stages: int, cost: Cost) -> None:
        self.max_concurrent_batches = stages
        self.now = 0
        self.busy: list[list[tuple[int, int, int]]] = [[] for _ in range(stages)]
        self._inner, self._cost = executor, cost
        self._free = [0] * stages  # from when on each stage is
        self._finished = 0  # when the newest step has passed the last
        self._sampled: bool | None = True

    def collective_rpc(
        self,
        method: str,
        args: tuple[Any, ...] = (),
        non_block: bool = False,
        single_value: bool = False,
    ) -> Any:
        return self._inner.collective_rpc(method, args, non_block, single_value)

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """As `Executor.execute_model`. A step without tokens reaches no stage."""
        assert non_block, "execute_model without non_block=True waits, and the queue stays empty"
        assert self._sampled is not False, (
            "a step with tokens was executed, and sample_tokens never asked for it"
        )
        tokens = scheduler_output.total_num_scheduled_tokens
        answer = self._inner.execute_model(scheduler_output)
        self._sampled = None
        if tokens:
            self._sampled = False
            step, start = len(self.busy[0]), self.now
            for stage, busy in enumerate(self.busy):
                start = max(start, self._free[stage])
                end = start + self._cost(tokens)
                busy.append((step, start, end))
                start = self._free[stage] = self._finished = end
        return _Result(self, answer, self._finished if tokens else self.now)

    def sample_tokens(self, grammar_output: None = None, non_block: bool = False) -> Any:
        """As `Executor.sample_tokens`."""
        assert non_block, "sample_tokens without non_block=True waits, and the queue stays empty"
        assert self._sampled is False, (
            "sample_tokens was called for a schedule without tokens, or twice for one"
        )
        self._sampled = True
        return _Result(self, self._inner.sample_tokens(), self._finished)


# ---- an engine with the lab's queue ----------------------------------------------------------------


@cache
def _model() -> Any:
    return get_model(str(DEFAULT_MODEL), EngineConfig().attention, None)


def settings(work: Workload) -> dict[str, Any]:
    """Of the server, here and in vLLM."""
    return {
        "block_size": 16,
        "max_model_len": 256,
        "max_num_seqs": work.max_num_seqs,
        "max_num_batched_tokens": work.max_num_batched_tokens,
        "enable_prefix_caching": False,
    }


def play(lab: Any, work: Workload, cost: str = "flat", spread: bool = False) -> Played:
    """Serve a workload through `lab.BatchQueue`; with `spread`, by `lab.hold_back`, too."""
    parts = EngineParts()
    wrong: list[str] = []
    if spread:
        made = make_scheduler(Scheduler, checked(lab.hold_back, wrong), work.stages)
        parts = EngineParts(scheduler=made)
    engine = LLMEngine(_model(), EngineConfig(num_gpu_blocks=128, **settings(work)), parts=parts)
    core: Any = engine.engine_core
    stages = StagesOnPaper(core.model_executor, work.stages, COSTS[cost])
    core.model_executor = stages
    queue = lab.BatchQueue(core.scheduler, stages)
    core.batch_queue = ()  # not None: the loop's body is the other one
    core.step_with_batch_queue = lambda: queue.step() or []
    played = serve(engine, core.scheduler, lambda: len(queue), SamplingParams, work)
    assert not wrong, wrong[0]
    played.busy, played.ticks = stages.busy, stages.now
    return played


def play_on_processes(work: Workload, hold_back: Any = None) -> Played:
    """Serve a workload on the engine's own pipeline of processes, with a rule or without."""
    parts = EngineParts()
    if hold_back is not None:
        parts = EngineParts(scheduler=make_scheduler(Scheduler, hold_back, work.stages))
    config = EngineConfig(num_gpu_blocks=128, pipeline_parallel_size=work.stages, **settings(work))
    engine = LLMEngine(DEFAULT_MODEL, config, parts=parts)
    core: Any = engine.engine_core
    try:
        return serve(engine, core.scheduler, lambda: len(core.batch_queue), SamplingParams, work)
    finally:
        core.shutdown()


def serve(
    engine: Any, scheduler: Any, in_flight: Callable[[], int], make_params: Any, work: Workload
) -> Played:
    """Serve a workload on an engine, `mini_vllm`'s or vLLM's, until every request has its last token."""
    played = Played([], {})
    schedule = scheduler.schedule

    def noted(*args: Any, **kwargs: Any) -> Any:
        if not scheduler.has_unfinished_requests():  # it only tells the workers which have finished
            return schedule(*args, **kwargs)
        before = in_flight()
        plan = schedule(*args, **kwargs)
        given = plan.num_scheduled_tokens.items()
        played.schedules.append((before, {i.split("-")[0]: n for i, n in given}))
        assert len(played.schedules) < TURNS, "the requests do not come to an end"
        return plan

    def step() -> None:
        for output in engine.step():
            if output.finished:
                played.tokens[output.request_id] = list(output.outputs[0].token_ids)

    scheduler.schedule = noted
    try:
        for count, (name, prompt, params) in enumerate(work.requests(), 1):
            engine.add_request(name, {"prompt_token_ids": prompt}, make_params(**params))
            for _ in range(2 if count == work.first else work.apart):
                step()
        turns = 0
        while engine.has_unfinished_requests():
            step()
            turns += 1
            assert turns < TURNS, "turn after turn, and the requests do not come to an end"
    finally:
        del scheduler.schedule
    return played


# ---- the rule in a scheduler -----------------------------------------------------------------------


def checked(hold_back: Callable[[Any, int], Any], wrong: list[str]) -> Callable[[Any, int], Any]:
    """`hold_back`; an answer that cannot be carried out is put into `wrong`, and all that fits is scheduled.

    It is not refused at once: the queue calls `schedule()`, and would be blamed for the rule's answer.
    """

    def ask(scheduler: Any, stages: int) -> Any:
        answer = hold_back(scheduler, stages)
        said = _what_is_wrong(answer, scheduler.running)
        if said:
            wrong.append(said)
            return [], TURNS
        return answer

    return ask


def _what_is_wrong(answer: Any, running: list[Any]) -> str:
    """Why an answer of `hold_back` cannot be carried out; "" if it can."""
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return f"hold_back returned {answer!r}, and not a list and a number"
    held, admit = answer
    if not isinstance(held, list | tuple):
        return f"hold_back returned {held!r} first, and not a list of requests"
    known = {id(request) for request in running}
    if not all(id(request) in known for request in held):
        return "hold_back holds back a request that is not running"
    if not isinstance(admit, int) or admit < 0:
        return f"hold_back returned {admit!r} as the number of waiting requests to admit"
    return ""


@contextmanager
def without(scheduler: Any, held: list[Any], admit: int) -> Iterator[None]:
    """For one schedule: `held` are not among the running, and at most `admit` more may join them."""
    order = {id(request): i for i, request in enumerate(scheduler.running)}
    hidden = {id(request) for request in held}
    limit = scheduler.max_num_running_reqs
    scheduler.running = [r for r in scheduler.running if id(r) not in hidden]
    scheduler.max_num_running_reqs = min(limit - len(held), len(scheduler.running) + admit)
    try:
        yield
    finally:
        scheduler.max_num_running_reqs = limit
        scheduler.running = sorted(
            [*scheduler.running, *held], key=lambda r: order.get(id(r), len(order))
        )


def make_scheduler(
    base: type, hold_back: Callable[[Any, int], Any], stages: int | None = None
) -> type:
    """`base`, a synchronous scheduler of `mini_vllm` or vLLM, with the rule in front of `schedule()`.

    Without `stages` vLLM's configuration says how many there are.
    """

    class SpreadScheduler(base):  # type: ignore[misc]
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            held, admit = hold_back(self, stages or self.parallel_config.pipeline_parallel_size)
            with without(self, list(held), admit):
                return super().schedule(*args, **kwargs)

    return SpreadScheduler


# ---- pictures --------------------------------------------------------------------------------------


def draw(played: Played, width: int = 72) -> str:
    """A line for each stage, a character for each tick: the step's last digit, or a dot for none."""
    lines = []
    for stage, busy in enumerate(played.busy):
        line = ["."] * played.ticks
        for step, start, end in busy:
            line[start:end] = str(step % 10) * (end - start)
        text = "".join(line)
        share = sum(end - start for _, start, end in busy) / played.ticks
        lines.append(
            f"stage {stage}  {text[:width]}{'...' if len(text) > width else ''}  {share:.0%}"
        )
    return "\n".join(lines)
