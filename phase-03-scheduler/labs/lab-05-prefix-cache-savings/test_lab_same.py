"""Lab 03-05: your scheduler beside vLLM's recorded decisions, beside the engine's own, and on the model."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import find_root, load_support
from course.parity.decisions import explain, mini_parts, replay
from course.parity.record import record, workload
from course.parity.traces import Run, read_traces
from mini_vllm.core.sched.scheduler import Scheduler

support = load_support(__file__)
GOLDEN = find_root() / "tests" / "golden" / "scheduler-0.22.1.jsonl.gz"
SHAPES = ("mixed", "priority", "no-gate", "no-chunks", "short-model", "no-cache", "odd-blocks")


def test_vllms_decisions(lab: ModuleType) -> None:
    """Your scheduler decides as vLLM did in every recorded step: who computes what, in which blocks, who
    loses them."""
    seen = 0
    for where, trace in read_traces(str(GOLDEN)):
        difference = replay(where, trace, lab.Scheduler)
        if difference is not None:
            pytest.fail(explain(difference, lab.Scheduler))
        seen += len(trace["steps"])
    assert seen == 2752, f"17 recordings with 2,752 steps in all, not {seen}"


@pytest.mark.parametrize("shape", SHAPES)
def test_the_engines_decisions(lab: ModuleType, shape: str) -> None:
    """Your scheduler decides as the engine's does in workloads that were never recorded."""
    for seed in range(300, 303):
        work = workload(seed, shape)
        trace = record(work, mini_parts(work["config"]))
        difference = replay(f"workload {seed} of the shape {shape!r}", trace, lab.Scheduler)
        if difference is not None:
            report = explain(difference, lab.Scheduler)
            pytest.fail(f"What the report calls vLLM is the engine's own scheduler here.\n{report}")


def sent(run: Run) -> list[Any]:
    """What each plan of a workload sends to the worker, and what the users are told in the end."""
    seen: list[Any] = []
    schedule = run.parts.scheduler.schedule

    def noted() -> Any:
        plan = schedule()
        new = [(r.req_id, r.block_ids, r.num_computed_tokens) for r in plan.scheduled_new_reqs]
        known = plan.scheduled_cached_reqs
        resumed = sorted(known.resumed_req_ids)
        rows = zip(known.req_ids, known.new_block_ids, known.num_computed_tokens, strict=True)
        seen.append({"new": new, "known": list(rows), "resumed": resumed})
        return plan

    run.parts.scheduler.schedule = noted
    while not run.done:
        run.arrive()
        run.decide()
    seen.append({name: request.num_cached_tokens for name, request in run.live.items()})
    return seen


def test_the_worker_hears_the_same(lab: ModuleType) -> None:
    """The worker is sent the same tables, counters and resumed requests, in every step of six workloads."""
    for seed in range(400, 406):
        work = workload(seed, SHAPES[seed % 3])
        runs = [Run(work, mini_parts(work["config"], c)) for c in (Scheduler, lab.Scheduler)]
        expected, got = map(sent, runs)
        for step, (a, b) in enumerate(zip(expected, got, strict=True)):
            for what in a:
                assert a[what] == b.get(what), (
                    f"workload {seed}, step {step}, {what}: the engine says {a[what]}, yours {b.get(what)}"
                )


def test_the_same_answers(lab: ModuleType) -> None:
    """Eight people with a system prompt get the same answers, with little room, hits and victims."""
    people = support.system_and_tail(lab, 20, 3)
    people = [ask._replace(num_answer_tokens=6 + 2 * i) for i, ask in enumerate(people)]
    roomy = support.serve(support.make_engine(enable_prefix_caching=False), people)
    tight = {"num_gpu_blocks": 14, "max_model_len": 48, "max_num_seqs": 5}
    engine = support.make_engine(lab.Scheduler, max_num_batched_tokens=16, **tight)
    served = support.serve(engine, people)
    scheduler = engine.engine_core.scheduler
    assert scheduler.num_preemptions > 0, "13 blocks are too few, and nobody lost any"
    for number, (a, b) in enumerate(zip(roomy, served, strict=True)):
        assert a.answer == b.answer, (
            f"request {number} says {a.answer} with room for all, and {b.answer} on yours with little"
        )
