"""Asynchronous scheduling in the engine: other plans, the same tokens."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from mini_vllm import LLM, EngineConfig, LLMEngine, SamplingParams
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.core import EngineDeadError
from mini_vllm.engine.parts import EngineParts
from mini_vllm.engine.step_record import StepRecord
from mini_vllm.outputs import RequestOutput
from mini_vllm.trace.data import from_data, to_data
from mini_vllm.trace.recorder import TraceRecorder
from mini_vllm.trace.text import to_text
from tests.engine.helpers.engine.invariants import check_drained
from tests.engine.helpers.engine.workloads import (
    Job,
    compare,
    drive,
    greedy,
    make_engine,
    prompts,
    random_workload,
)
from tests.engine.helpers.patience import PATIENCE
from tests.engine.helpers.thorough import either

PARTS = EngineParts()
TIGHT: dict[str, Any] = {
    "num_gpu_blocks": 10,
    "max_model_len": 96,
    "max_num_seqs": 6,
    "long_prefill_token_threshold": 8,
}


def ahead(parts: EngineParts = PARTS, **settings: Any) -> LLMEngine:
    return make_engine(parts, async_scheduling=True, **settings)


# -- the same tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200, either(204, 240)))
def test_random_arrivals_aborts_and_preemptions_change_no_token(seed: int) -> None:
    jobs, settings = random_workload(seed)
    engine = ahead(**settings)
    compare(f"seed {seed}", engine, jobs, drive(engine, jobs)[0])
    assert not engine.engine_core.batch_queue, "a plan is still in flight"


TEXTS = ("The KV cache", "A block table maps", "The scheduler decides each step: who runs")


def mixed_params(stop: str) -> list[SamplingParams]:
    """Greedy and seeded, penalties, min_tokens, n, logprobs of both kinds, ends of each kind."""
    return [
        SamplingParams(temperature=0, max_tokens=24),
        SamplingParams(temperature=0, max_tokens=20, logprobs=2, prompt_logprobs=1),
        SamplingParams(temperature=0.8, seed=3, max_tokens=30, frequency_penalty=0.7),
        SamplingParams(temperature=0.9, seed=4, n=3, max_tokens=18, top_p=0.9),
        SamplingParams(temperature=0, max_tokens=40, stop=stop),
        SamplingParams(temperature=0, min_tokens=12, max_tokens=16, repetition_penalty=1.3),
        SamplingParams(temperature=1.1, seed=5, max_tokens=33, top_k=20, presence_penalty=0.4),
        SamplingParams(temperature=0, max_tokens=1),
        SamplingParams(temperature=0, max_tokens=either(90, 200), ignore_eos=True),
    ]


def said(outputs: list[RequestOutput]) -> list[Any]:
    found: list[Any] = []
    for output in outputs:
        for one in output.outputs:
            ranks = [
                [(i, e.rank, e.decoded_token) for i, e in at.items()] for at in one.logprobs or []
            ]
            ends = (one.finish_reason, one.stop_reason)
            found.append((one.text, list(one.token_ids), *ends, ranks))
        found.append([list(at) if at else None for at in output.prompt_logprobs or []])
    return found


@pytest.mark.parametrize("policy", either(["priority"], ["fcfs", "priority"]))
def test_the_shipped_model_says_the_same(policy: str) -> None:
    """Short of blocks, with chunks and the prefix cache."""
    stop = LLM().generate(TEXTS[1], SamplingParams(temperature=0))[0].outputs[0].text[4:7]
    params = mixed_params(stop)
    texts = [TEXTS[i % len(TEXTS)] for i in range(len(params))]
    priority = [i % 3 for i in range(len(params))]
    answers, preemptions = [], []
    for async_scheduling in (False, True):
        llm = LLM(async_scheduling=async_scheduling, scheduling_policy=policy, **TIGHT)
        outputs = llm.generate(texts, params, priority=priority)
        answers.append(said(outputs))
        core = llm.llm_engine.engine_core
        check_drained(core.scheduler)
        preemptions.append(core.scheduler.num_preemptions)
    assert all(preemptions), preemptions
    assert answers[0] == answers[1]


def test_a_request_runs_to_the_end_of_the_model() -> None:
    (prompt,) = prompts(3, 20)
    job = Job(prompt, 60)
    engine = ahead(max_model_len=32)
    (got,), _ = drive(engine, [job])
    assert got == job.expected[:12]
    check_drained(engine.engine_core.scheduler)


# -- the loop -------------------------------------------------------------------------------------


def watch(engine: LLMEngine) -> list[tuple[list[str], list[str]]]:
    """Per plan taken in: who was in it, and of whom a token came."""
    seen: list[tuple[list[str], list[str]]] = []
    engine.engine_core.step_observers.append(
        lambda r: seen.append(
            (list(r.scheduler_output.num_scheduled_tokens), [o.request_id for o in r.outputs])
        )
    )
    return seen


def test_a_length_stop_leaves_two_empty_plans_and_eos_a_wasted_row() -> None:
    (prompt,) = prompts(7, 5)
    by_length = ahead()
    seen = watch(by_length)
    drive(by_length, [Job(prompt, 4)])
    assert seen == [(["0"], ["0"])] * 4 + [([], [])] * 2

    by_token = ahead()
    seen = watch(by_token)
    fourth = greedy(prompt, 8)[3]
    first = greedy(prompt, 8).index(fourth)
    params = SamplingParams(temperature=0, max_tokens=8, stop_token_ids=[fourth])
    by_token.add_request("0", prompt, params)
    while by_token.has_unfinished_requests():
        by_token.step()
    assert seen == [(["0"], ["0"])] * (first + 1) + [(["0"], []), ([], [])]


def test_the_core_plans_while_the_worker_computes() -> None:
    """The worker does not begin a step before the next is planned; if the core waited, none would."""
    engine = ahead()
    core = engine.engine_core
    assert core.batch_queue is not None
    planned, names = threading.Semaphore(0), set[str]()
    core.batch_queue.plan_observers.append(lambda *plan: planned.release())
    execute = core.model_runner.execute_model

    def late(output: Any) -> Any:
        names.add(threading.current_thread().name)
        for _ in range(2 if output.scheduled_new_reqs else 1):
            assert planned.acquire(timeout=PATIENCE), "the next step was not planned"
        return execute(output)

    core.model_runner.execute_model = late  # type: ignore[method-assign]
    (prompt,) = prompts(7, 5)
    engine.add_request("a", prompt, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    tokens: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens = list(output.outputs[0].token_ids)
            planned.release()  # what follows the last token is not the matter here
    assert tokens == greedy(prompt, 6)
    assert names == {"mini-vllm-worker"}


@pytest.mark.parametrize("early", [True, False])
def test_done_early_decides_whether_a_second_plan_is_made_first(early: bool) -> None:
    asked: list[bool] = []

    def done_early(future: Future[Any]) -> bool:
        asked.append(True)
        return early

    engine = ahead(EngineParts(done_early=done_early))
    (prompt,) = prompts(7, 5)
    engine.add_request("a", prompt, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    outputs = engine.step()
    assert bool(outputs) == early
    assert asked == [True]
    while engine.has_unfinished_requests():
        outputs = engine.step() or outputs
    assert list(outputs[0].outputs[0].token_ids) == greedy(prompt, 3)


def test_vllms_own_question_is_one_of_the_choices() -> None:
    jobs, settings = random_workload(207)
    engine = ahead(EngineParts(done_early=Future.done), **settings)
    compare("asking the future", engine, jobs, drive(engine, jobs)[0])


def test_equal_requests_are_planned_equally_in_every_run() -> None:
    runs = []
    for _ in range(3):
        engine = ahead(num_gpu_blocks=12, max_num_seqs=4)
        seen = watch(engine)
        drive(engine, [Job(p, 9, arrive=i) for i, p in enumerate(prompts(5, 9, 12, 7, 15))])
        runs.append(seen)
    assert runs[0] == runs[1] == runs[2]


# -- coming and going while plans are in flight ---------------------------------------------------


def test_an_id_taken_again_gets_none_of_the_old_tokens() -> None:
    a, b = prompts(11, 6, 9)
    for steps in range(1, 6):
        engine = ahead()
        engine.add_request("x", a, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
        for _ in range(steps):
            engine.step()
        engine.abort_request("x")
        engine.add_request("x", b, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
        tokens: list[int] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens = list(output.outputs[0].token_ids)
        assert tokens == greedy(b, 5), f"aborted after {steps} turns"
        scheduler = engine.engine_core.scheduler
        assert isinstance(scheduler, AsyncScheduler)
        assert not scheduler.async_tokens_to_discard
        check_drained(scheduler)


def test_nothing_is_left_when_the_last_request_is_aborted_in_flight() -> None:
    (prompt,) = prompts(11, 6)
    engine = ahead()
    engine.add_request("x", prompt, SamplingParams(temperature=0, max_tokens=20))
    engine.step()
    engine.abort_request("x")
    assert engine.engine_core.batch_queue
    assert engine.step() == []
    assert not engine.engine_core.batch_queue
    check_drained(engine.engine_core.scheduler)
    assert not engine.engine_core.model_runner.requests, "the worker was not told"


@pytest.mark.parametrize("turns", range(1, 7))
def test_a_reset_in_flight_computes_everything_again(turns: int) -> None:
    jobs = [Job(p, 9) for p in prompts(13, 9, 14)]
    engine = ahead()
    for i, job in enumerate(jobs):
        engine.add_request(str(i), job.prompt, job.params)
    tokens: dict[str, list[int]] = {}
    for turn in range(100):
        if turn == turns:
            assert engine.engine_core.scheduler.reset_prefix_cache(reset_running_requests=True)
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
        if not engine.has_unfinished_requests():
            break
    compare("reset", engine, jobs, [tokens[str(i)] for i in range(len(jobs))])


# -- errors, parts, observers ---------------------------------------------------------------------


def test_an_error_of_the_worker_ends_the_engine_as_it_does_without() -> None:
    (prompt,) = prompts(7, 5)
    for async_scheduling in (False, True):
        engine = make_engine(PARTS, async_scheduling=async_scheduling)
        params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
        engine.add_request("a", prompt, params)
        engine.step()

        def broken(*_: Any) -> Any:
            raise ZeroDivisionError("a kernel went wrong")

        engine.model.forward = broken  # type: ignore[method-assign]
        try:
            with pytest.raises(ZeroDivisionError, match="a kernel went wrong"):
                drive(engine, [])
            with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
                engine.step()
        finally:
            del engine.model.forward


def test_a_scheduler_that_cannot_plan_ahead_is_refused() -> None:
    class Mine(Scheduler):
        pass

    with pytest.raises(ValueError, match=r"Mine.*async_scheduling needs an AsyncScheduler"):
        ahead(EngineParts(scheduler=Mine))
    assert type(ahead().engine_core.scheduler) is AsyncScheduler
    # The other way round it decides as the synchronous one does.
    jobs, settings = random_workload(208)
    engine = make_engine(EngineParts(scheduler=AsyncScheduler), **settings)
    compare("AsyncScheduler, one plan at a time", engine, jobs, drive(engine, jobs)[0])


def test_the_setting_is_checked_and_has_vllms_names() -> None:
    with pytest.raises(ValueError, match="async_scheduling must be True or False, got 1"):
        EngineConfig(async_scheduling=1)  # type: ignore[arg-type]
    assert not LLM().llm_engine.config.async_scheduling
    assert LLM(async_scheduling=True).llm_engine.engine_core.batch_queue is not None


def test_metrics_count_the_same() -> None:
    counts = []
    for async_scheduling in (False, True):
        llm = LLM(async_scheduling=async_scheduling, disable_log_stats=False)
        outputs = llm.generate(list(TEXTS), SamplingParams(temperature=0, max_tokens=12))
        assert all(o.metrics is not None for o in outputs)
        found = {m.name: getattr(m, "value", None) for m in llm.get_metrics()}
        counts.append({n: v for n, v in found.items() if "tokens" in n or "success" in n})
    assert counts[0] == counts[1]


def test_a_record_has_its_own_plan_and_result() -> None:
    engine = ahead()
    records: list[StepRecord] = []
    engine.engine_core.step_observers.append(records.append)
    drive(engine, [Job(p, 6) for p in prompts(9, 4, 8)])
    assert [r.index for r in records] == list(range(1, len(records) + 1))
    for record in records:
        assert record.model_runner_output.req_ids == list(
            record.scheduler_output.num_scheduled_tokens
        )
        assert record.execute_time > 0
    assert engine.engine_core.num_steps == len(records)


@pytest.mark.parametrize("seed", [201, 203, 204])
def test_a_trace_follows_the_plans(seed: int) -> None:
    """Each decision has its reason, each token stands in the plan that sampled it."""
    jobs, settings = random_workload(seed)
    engine = ahead(**settings)
    recorder = TraceRecorder(engine)
    got, _ = drive(engine, jobs)
    trace = from_data(to_data(recorder.trace))
    text = to_text(trace.steps)
    assert "not by vLLM's rules" not in text
    assert " ends it" in text
    assert "(its last token had come)" in text
    for i, tokens in enumerate(got):
        parts = [p for s in trace.steps for p in s.scheduled if p.request_id == str(i)]
        # Of an aborted request the core may have sampled one more than was handed out.
        assert [t for p in parts for t in p.new_token_ids][: len(tokens)] == tokens
    assert trace.steps[-1].running == []
    assert trace.steps[-1].free_blocks == engine.config.num_gpu_blocks - 1  # type: ignore[operator]
    assert (
        sum(len(s.preempted) for s in trace.steps) == engine.engine_core.scheduler.num_preemptions
    )


def test_the_async_front_door_serves_it() -> None:
    jobs = [Job(p, 7) for p in prompts(21, 5, 9, 12)]
    engine = ahead(num_gpu_blocks=24, max_num_seqs=3)

    async def one(llm: AsyncLLM, i: int, leave: bool) -> list[int]:
        tokens: list[int] = []
        async for output in llm.generate(
            {"prompt_token_ids": jobs[i].prompt}, jobs[i].params, f"{i} {leave}"
        ):
            tokens = list(output.outputs[0].token_ids)
            if leave:
                break
        return tokens

    async def all_of_them() -> list[list[int]]:
        llm = AsyncLLM(engine)
        try:
            doors = [one(llm, i, leave) for i in range(len(jobs)) for leave in (False, True)]
            answers = await asyncio.gather(*doors)
            await llm.drain()
            return answers
        finally:
            llm.shutdown()

    answers = asyncio.run(all_of_them())
    assert answers[::2] == [job.expected for job in jobs]
    check_drained(engine.engine_core.scheduler)
