"""`mini_vllm`'s scheduler with one rule taken out at a time, for the deep dive: what goes wrong without it?

The people and the settings are noon's. The page imports this module by its name: start Python in this folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from noon import COMES, PROMPTS, WANTED, got, greedy, new_engine, prompt_ids, run

from course.parity.decisions import mini_parts
from course.parity.traces import Parts
from mini_vllm import RequestOutput
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import (
    EngineCoreOutput,
    ModelRunnerOutput,
    SchedulerOutput,
)
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.parts import EngineParts
from mini_vllm.trace import TraceRecorder


class Remembers(Scheduler):
    """A victim gives its blocks back, and its counter still says what they held.

    A prefix is looked up as vLLM does it, only for a request whose counter is 0. `mini_vllm` always looks,
    so what a victim's counter says is kept beside it, in `kept`. A test has vLLM's scheduler decide the same.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kept: dict[str, int] = {}
        manager: Any = self.kv_cache_manager
        look_up = manager.get_computed_blocks

        def get_computed_blocks(request: Request) -> tuple[KVCacheBlocks, int]:
            kept = self.kept.get(request.request_id, 0)
            return (manager.empty_kv_cache_blocks, kept) if kept else look_up(request)

        manager.get_computed_blocks = get_computed_blocks

    def _preempt_request(self, request: Request) -> None:
        self.kept[request.request_id] = request.num_computed_tokens
        super()._preempt_request(request)


class NewestFirst(Scheduler):
    """Of the running, whoever came last is served first."""

    def _schedule_running(self, step: Any) -> None:
        self.running.reverse()
        super()._schedule_running(step)
        self.running.reverse()


class OldestVictim(Scheduler):
    """Of the running, whoever came first is preempted."""

    def _pop_victim(self) -> Request:
        return self.running.pop(0)


class Overtakes(Scheduler):
    """Whoever does not fit is passed by those behind."""

    def _schedule_waiting(self, step: Any) -> None:
        aside: list[Request] = []
        super()._schedule_waiting(step)
        while len(self.waiting) and len(self.running) < self.max_num_running_reqs:
            aside.append(self.waiting.pop_request())
            super()._schedule_waiting(step)
        for request in reversed(aside):
            self.waiting.prepend_request(request)


class SendsWhatIsNew(Scheduler):
    """Of an admitted request the worker hears the blocks just taken, and not those that were found."""

    def _schedule_waiting(self, step: Any) -> None:
        super()._schedule_waiting(step)
        for request in step.scheduled_new_reqs + step.scheduled_resumed_reqs:
            found = request.num_computed_tokens // self.config.block_size
            table = step.req_to_new_blocks[request.request_id]
            step.req_to_new_blocks[request.request_id] = KVCacheBlocks(table.blocks[found:])


class MovesLater(Scheduler):
    """The counters move when the result is there."""

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        self.finished_req_ids = set()

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        super()._update_after_schedule(scheduler_output)
        return super().update_from_output(scheduler_output, model_runner_output)


class NobodyLeaves(Scheduler):
    """Whoever was scheduled is taken to be there when its result comes."""

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        for req_id in scheduler_output.num_scheduled_tokens:
            self.requests[req_id]
        return super().update_from_output(scheduler_output, model_runner_output)


def _engine(scheduler: Any, **settings: Any) -> Any:
    return new_engine(EngineParts(scheduler=scheduler), **settings)


def noon_with(scheduler: Any, name: str, first: int, last: int) -> list[int]:
    """The tokens that each of noon's steps `first` to `last` computes for somebody."""
    return [got(step, name) for step in run(_engine(scheduler))[first - 1 : last]]


def print_table(*rows: Sequence[object]) -> None:
    """The first column to the left, the others to the right."""
    wide = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        first, *others = (str(cell) for cell in row)
        cells = [cell.rjust(width) for cell, width in zip(others, wide[1:], strict=True)]
        print("  ".join([first.ljust(wide[0]), *cells]))


def compare(name: str, first: int, last: int, *schedulers: Any) -> None:
    """Print what each of noon's steps `first` to `last` computes for somebody, a row for each scheduler."""
    rows = [(s.__name__, *(n or "-" for n in noon_with(s, name, first, last))) for s in schedulers]
    print_table(("step", *range(first, last + 1)), *rows)


def compare_totals(*schedulers: Any) -> None:
    """Print the tokens that noon computes in all, and its steps."""
    rows = [(scheduler.__name__, *all_computed(scheduler)) for scheduler in schedulers]
    print_table(("all of noon", "tokens", "steps"), *rows)


def all_computed(scheduler: Any) -> tuple[int, int]:
    """Tokens that noon computes in all, and its steps."""
    steps = run(_engine(scheduler))
    return sum(got(step, name) for step in steps for name in PROMPTS), len(steps)


def _crowd(engine: Any, until: int) -> Iterator[tuple[int, list[RequestOutput]]]:
    """Noon's steps and what each brings, if from step 5 on one more like Hal asks in each until `until`."""
    number = 0
    while True:
        number += 1
        for name, step in COMES.items():
            if step == number:
                engine.add_request(name, PROMPTS[name], greedy(WANTED[name]))
        if COMES["hal"] < number <= until:
            prompt = {"prompt_token_ids": [number, *prompt_ids("hal")]}  # nobody finds a prefix
            engine.add_request(f"hal {number}", prompt, greedy(WANTED["hal"]))
        yield number, engine.step()


def _ends(name: str, engine: Any, until: int) -> int:
    """The step of that noon which brings somebody the last token."""
    for number, outputs in _crowd(engine, until):
        if any(output.request_id == name and output.finished for output in outputs):
            return number
    raise AssertionError("the steps go on for ever")


def gil_ends(scheduler: Any, crowd_until: int) -> int:
    """The step that brings Gil his last token if somebody like Hal comes in each step until `crowd_until`."""
    return _ends("gil", _engine(scheduler), crowd_until)


def fay_ends(scheduler: Any, crowd_until: int) -> tuple[int, int, int]:
    """Fay in the same crowd, with chunks of at most 8 tokens and nothing to find in the cache.

    Returns the step of her last token, how often she was preempted, and the tokens computed for her.
    """
    engine = _engine(scheduler, long_prefill_token_threshold=8, enable_prefix_caching=False)
    recorder = TraceRecorder(engine)
    last = _ends("fay", engine, crowd_until)
    preempted = sum("fay" in step.preempted for step in recorder.steps)
    return last, preempted, sum(got(step, "fay") for step in recorder.steps)


CROWDS = (10, 30, 60)
"""The last step in which one more like Hal asks."""


def fay_in_a_crowd(*schedulers: Any) -> None:
    """Print how Fay fares in three crowds (`fay_ends`)."""
    rows = [(s.__name__, until, *fay_ends(s, until)) for s in schedulers for until in CROWDS]
    print_table(
        ("scheduler", "newcomers until", "Fay's last token", "preempted", "computed"), *rows
    )


def gil_in_a_crowd(*schedulers: Any) -> None:
    """Print the step of Gil's last token in three crowds (`gil_ends`)."""
    rows = [(s.__name__, *(gil_ends(s, until) for until in CROWDS)) for s in schedulers]
    print_table(("newcomers until", *CROWDS), *rows)


def gil_says(scheduler: Any = Scheduler) -> str:
    """Gil's answer at noon."""
    engine = _engine(scheduler)
    for number in range(1, 60):
        for name, step in COMES.items():
            if step == number:
                engine.add_request(name, PROMPTS[name], greedy(WANTED[name]))
        for output in engine.step():
            if output.request_id == "gil" and output.finished:
                return str(output.outputs[0].text)
    return f"nothing in {number} steps"


def _alone(scheduler: Any) -> Parts:
    from both_schedulers import CONFIG

    return mini_parts(CONFIG, scheduler)


def schedule_twice(*schedulers: Any) -> None:
    """Fay alone, two steps in a row without a result between them: print the positions that each computes."""
    from both_schedulers import World

    rows = []
    for scheduler in schedulers:
        world = World(_alone(scheduler), comes={"fay": 1})
        world.arrive()
        outputs = [world.schedule(), world.schedule()]
        begins = [outputs[0].scheduled_new_reqs[0].num_computed_tokens]
        begins += outputs[1].scheduled_cached_reqs.num_computed_tokens
        ends = [b + o.total_num_scheduled_tokens for b, o in zip(begins, outputs, strict=True)]
        rows.append([f"{b} to {e - 1}" for b, e in zip(begins, ends, strict=True)])
    names = [scheduler.__name__ for scheduler in schedulers]
    table = [(name, *row) for name, row in zip(names, rows, strict=True)]
    print_table(("positions", "step 1", "step 2"), *table)


def fay_leaves(scheduler: Any = Scheduler) -> str:
    """Fay hangs up while step 5 is computed. Returns how far Eve has come by the end of it."""
    from both_schedulers import World

    world = World(_alone(scheduler))
    world.steps_before(5)
    world.arrive()
    world.schedule()
    world.scheduler.finish_requests("fay", world.parts.aborted)
    world.update()
    return world.state("eve")
