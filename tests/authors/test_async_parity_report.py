"""course.parity notices every difference in a trace of asynchronous scheduling, and names the rule.

As test_parity_report.py does for synchronous scheduling; what both share is tested there.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from async_parity_faults import FAULTS, PlansTooFar

from course.parity import decisions as parity
from course.parity import explain, mini_parts, replay
from course.parity.async_traces import DRAFT_FIELDS, FIELDS, AsyncRun
from course.parity.record import SHAPES, record, workload
from course.parity.rules import RULES, moment
from course.parity.traces import Trace, read_traces
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.trace.golden import GoldenError, from_golden
from mini_vllm.trace.golden_async import AsyncRecording

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "async-scheduler-0.22.1.jsonl.gz"


@pytest.fixture(scope="module")
def golden() -> list[tuple[str, Trace]]:
    return list(read_traces(str(GOLDEN)))


def _falsify(trace: Trace, kind: str, field: str) -> int:
    """Change one field of a call in the middle of the trace; the call's number."""
    calls: list[Any] = list(trace["steps"])
    for number, call in list(enumerate(calls))[len(calls) // 3 :]:
        if call["call"] != kind:
            continue
        value = call[field]
        if field == "free":
            call["free"] = value + 1
        elif field == "preempted":
            call["preempted"] = ["r000"] if not value else []
        elif not value:
            continue
        elif field == "running":
            value[0] += "x"
        elif field == "blocks":
            next(iter(value.values()))[0] += 1
        elif field in ("scheduled", "placeholders"):
            value[next(iter(value))] += 1
        else:
            value[next(iter(value))] = "FINISHED_ABORTED"
        return number
    raise AssertionError(f"the trace has no {field}")


@pytest.mark.parametrize(
    ("kind", "field"), [(k, f) for k, of in FIELDS.items() for f in of if f not in DRAFT_FIELDS]
)
def test_every_field_is_compared(golden: list[tuple[str, Trace]], kind: str, field: str) -> None:
    trace = copy.deepcopy(golden[-1][1])
    number = _falsify(trace, kind, field)
    found = replay("here", trace)
    assert found is not None
    assert (found.step, found.fields) == (number, (field,))
    report = explain(found)
    assert f"call {number}: the decisions differ in {field}" in report
    assert "the rule" in report


def test_another_call_is_noticed(golden: list[tuple[str, Trace]]) -> None:
    trace = copy.deepcopy(golden[0][1])
    number = next(i for i, c in enumerate(trace["steps"]) if c["call"] == "update")  # type: ignore[typeddict-item]
    del trace["steps"][number]
    found = replay("here", trace)
    assert found is not None
    assert (found.step, found.fields) == (number, ("calls",))
    assert RULES["calls"] in " ".join(explain(found).split())


def test_a_trace_that_is_cut_or_goes_on_is_noticed(golden: list[tuple[str, Trace]]) -> None:
    cut, longer = copy.deepcopy(golden[0][1]), copy.deepcopy(golden[0][1])
    del cut["steps"][-1]
    longer["steps"].append(longer["steps"][-1])
    for trace in (cut, longer):
        found = replay("here", trace)
        assert found is not None
        assert "unfinished" in found.fields


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_its_rule_named(golden: list[tuple[str, Trace]], fault: str) -> None:
    scheduler_class, expected = FAULTS[fault]
    found = [(where, replay(where, trace, scheduler_class)) for where, trace in golden]
    reports = [explain(each, scheduler_class) for _, each in found if each is not None]
    assert reports, "no trace notices"
    naming = [report for report in reports if expected in " ".join(report.split())]
    assert naming, f"no report says {expected!r}; the first one:\n{reports[0]}"


def test_a_report_in_full(golden: list[tuple[str, Trace]]) -> None:
    trace = next(t for _, t in golden if t["seed"] == 308)
    found = replay("golden:2", trace, PlansTooFar)
    assert found is not None
    report = explain(found, PlansTooFar)
    assert "here: PlansTooFar of " in report
    assert "call 15: the decisions differ in scheduled" in report
    assert "  schedule(), in turn 8" in report
    words = " ".join(report.split())
    assert "running r000 72/72 66 1 2 3 .. 34 35 36 (36) 1 waiting r001" in words
    assert "r000: its last token is being sampled already" in words


def _follow(trace: Trace, at_plan: Callable[[AsyncRecording, Any], None]) -> None:
    recording, turn = AsyncRecording(trace), 0
    for call in trace["steps"]:
        if call["call"] == "update":  # type: ignore[typeddict-item]
            recording.update(call)
            continue
        now: Any = call
        for idle in range(turn, now["turn"]):
            recording.begin(idle)
        turn = now["turn"] + 1
        recording.step(now["turn"], now, *recording.begin(now["turn"]))
        at_plan(recording, now)


def test_the_rules_of_the_report_are_vllms(golden: list[tuple[str, Trace]]) -> None:
    """The walk through the rules comes to vLLM's decision on every request in every plan."""
    named: Counter[str] = Counter()

    def check(recording: AsyncRecording, plan: Any) -> None:
        states = recording.explainer.states
        for request_id, reason in recording.reasons.items():
            assert reason.rule != "against", f"turn {plan['turn']}, {request_id}: {reason}"
            named[reason.rule] += 1
        placeholders = {i: states[i].num_output_placeholders for i in plan["scheduled"]}
        assert placeholders == plan["placeholders"]
        assert recording.explainer.free == plan["free"]

    for _, trace in golden:
        _follow(trace, check)
    assert named.keys() <= RULES.keys(), "a rule without a sentence"
    assert named["flight"] > 50
    assert named["victim"] > 80


def test_the_state_before_a_call_is_the_schedulers(golden: list[tuple[str, Trace]]) -> None:
    for _, trace in golden[::4]:
        run = AsyncRun(trace, mini_parts(trace["config"], AsyncScheduler))
        scheduler = run.parts.scheduler
        for number, (call, recorded) in enumerate(zip(run.calls(), trace["steps"], strict=True)):
            assert call == recorded
            if number % 37 or number + 1 == len(trace["steps"]):
                continue
            before = moment(trace, number + 1).before
            for request in scheduler.running:
                state = before.states[request.request_id]
                assert state.num_tokens == request.num_tokens
                assert state.num_computed_tokens == request.num_computed_tokens
                assert state.num_output_placeholders == request.num_output_placeholders
                assert state.table == run.parts.block_ids(request.request_id)


@pytest.mark.parametrize("shape", SHAPES)
def test_workloads_can_run_ahead(shape: str) -> None:
    for seed in range(2):
        work = workload(seed, shape)
        trace = record(work, mini_parts(work["config"], AsyncScheduler), True)
        assert set(trace["final"]) == {q["id"] for q in work["requests"]}
        assert replay(shape, trace) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c[3].pop("call"), "call 3 has no 'call'"),
        (lambda c: c[3].update(call="sleep"), "call 3 is neither schedule nor update"),
        (lambda c: c[0].pop("placeholders"), "call 0 has no 'placeholders'"),
        (lambda c: c[2].update(free="1"), "'free' of call 2 must be int"),
    ],
)
def test_a_bad_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Any], Any], message: str
) -> None:
    trace = json.loads(gzip.decompress(GOLDEN.read_bytes()).splitlines()[0])
    change(trace["steps"])
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps(trace))
    assert parity.main([str(file)]) == 2
    assert message in capsys.readouterr().err


def test_the_viewer_says_that_it_draws_steps(golden: list[tuple[str, Trace]]) -> None:
    with pytest.raises(GoldenError, match="a recording of asynchronous scheduling"):
        from_golden(golden[0][1])
