"""course.parity notices every difference, and its report names the rule.

That nothing differs is the engine's own test, tests/engine/parity/test_parity.py.
"""

from __future__ import annotations

import copy
import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from parity_faults import FAULTS, LastIsFirst

from course.parity import FIELDS, explain, mini_parts
from course.parity import decisions as parity
from course.parity import replay as replay_trace
from course.parity.record import SHAPES, record, workload
from course.parity.report import ids
from course.parity.rules import RULES, moment
from course.parity.traces import Config, Run, Trace, TraceError, read_traces, token
from mini_vllm.trace.golden import Recording

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "scheduler-0.22.1.jsonl.gz"


@pytest.fixture(scope="module")
def golden() -> list[tuple[str, Trace]]:
    return list(read_traces(str(GOLDEN)))


# -- nothing goes unnoticed -----------------------------------------------------------------------


def _drop_one(trace: Trace, field: str) -> int:
    """Falsify one decision in the middle of the trace; the step."""
    for step, decision in list(enumerate(trace["steps"]))[len(trace["steps"]) // 3 :]:
        value: Any = decision[field]  # type: ignore[literal-required]
        if field == "free":
            decision["free"] = value + 1
        elif field == "preempted":
            decision["preempted"] = ["r000"] if not value else []
        elif not value:
            continue
        elif field == "running":
            value[0] += "x"
        elif field == "blocks":
            next(iter(value.values()))[0] += 1
        elif field == "scheduled":
            value[next(iter(value))] += 1
        else:
            value[next(iter(value))] = "FINISHED_ABORTED"
        return step
    raise AssertionError(f"the trace has no {field}")


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_compared(golden: list[tuple[str, Trace]], field: str) -> None:
    trace = copy.deepcopy(golden[-1][1])
    step = _drop_one(trace, field)
    found = replay_trace("here", trace)
    assert found is not None
    assert (found.step, found.fields) == (step, (field,))
    assert f"step {step}: the decisions differ in {field}" in explain(found)


def test_the_order_of_scheduling_is_compared(golden: list[tuple[str, Trace]]) -> None:
    trace = copy.deepcopy(golden[-1][1])
    step = next(k for k, d in enumerate(trace["steps"]) if len(d["scheduled"]) > 1)
    decision = trace["steps"][step]
    decision["scheduled"] = dict(reversed(decision["scheduled"].items()))
    found = replay_trace("here", trace)
    assert found is not None
    assert (found.step, found.fields) == (step, ("scheduled",))
    report = explain(found)
    assert "Order: the running list from its head" in report or "Queue:" in report


@pytest.mark.parametrize("field", ["outputs", "final", "preemptions"])
def test_the_end_is_compared(golden: list[tuple[str, Trace]], field: str) -> None:
    trace = copy.deepcopy(golden[0][1])
    of: dict[str, Any] = trace[field]  # type: ignore[literal-required]
    first = next(iter(of))
    of[first] = {"outputs": [1, 2], "final": "RUNNING", "preemptions": 99}[field]
    found = replay_trace("here", trace)
    assert found is not None
    assert found.fields == (field,)
    assert f"{field} of {first}: vLLM {of[first]}" in explain(found)


def test_requests_left_over_are_noticed(golden: list[tuple[str, Trace]]) -> None:
    trace = copy.deepcopy(golden[0][1])
    del trace["steps"][-1]
    found = replay_trace("here", trace)
    assert found is not None
    assert "unfinished" in found.fields


# -- faults, and the rule that each report names --------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_its_rule_named(golden: list[tuple[str, Trace]], fault: str) -> None:
    scheduler_class, expected = FAULTS[fault]
    reports = []
    for where, trace in golden:
        found = replay_trace(where, trace, scheduler_class)
        if found is not None:
            reports.append(explain(found, scheduler_class))
            if not found.end:
                assert f"step {found.step}: " in reports[-1]
                assert "before the step" in reports[-1]
    assert reports, "no trace notices"
    naming = [report for report in reports if expected in " ".join(report.split())]
    assert naming, f"no report says {expected!r}; the first one:\n{reports[0]}"


def test_a_report_in_full(golden: list[tuple[str, Trace]]) -> None:
    trace = next(t for _, t in golden if t["seed"] == 56)
    found = replay_trace("golden:1", trace, LastIsFirst)
    assert found is not None
    report = explain(found, LastIsFirst)
    assert report.startswith(f"trace golden:1, seed 56, 3 requests\n  block_size=16, {''}")
    assert "here: LastIsFirst of " in report
    assert "running" in report
    assert "> preempted\n    vLLM: " in report
    words = " ".join(report.split())
    assert "before the step, in vLLM budget " in words
    assert (
        "r002: r000 needs 1 more block and 0 are free; it is the last of the running list, and "
        "frees 1." in words
    )


def test_the_rules_of_the_report_are_vllms(golden: list[tuple[str, Trace]]) -> None:
    """The one walk through the rules comes to vLLM's decision on every request at every step."""
    named: Counter[str] = Counter()
    for where, trace in golden:
        recording = Recording(trace)
        for at, decision in enumerate(trace["steps"]):
            recording.step(at, decision, *recording.begin(at))
            for request_id, reason in recording.reasons.items():
                assert reason.rule != "against", f"{where} step {at}, {request_id}: {reason}"
                assert reason.words
                named[reason.rule] += 1
            assert recording.reasons.keys() >= {*decision["scheduled"], *decision["preempted"]}
    assert named.keys() <= RULES.keys(), "a rule without a sentence"
    assert named["victim"] > 200
    assert {"rest", "threshold", "budget", "spent", "slots", "gate", "preempted"} <= named.keys()


def test_the_state_before_a_step_is_the_schedulers(golden: list[tuple[str, Trace]]) -> None:
    """What the report shows from the recording alone, against a scheduler that took each step."""
    for _, trace in golden[::4]:
        run = Run(trace, mini_parts(trace["config"]))
        for at in range(len(trace["steps"])):
            run.arrive()
            if at % 29 == 0:
                before = moment(trace, at).before
                scheduler = run.parts.scheduler
                assert before.running == [r.request_id for r in scheduler.running]
                assert set(before.queue()) == {r.request_id for r in scheduler.waiting}
                assert before.free == scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
                for request in (*scheduler.running, *scheduler.waiting):
                    state = before.states[request.request_id]
                    assert state.num_tokens == request.num_tokens
                    assert state.num_computed_tokens == request.num_computed_tokens
                    assert state.table == run.parts.block_ids(request.request_id)
            run.decide()


def test_a_recording_that_cannot_be_has_a_report_without_a_state() -> None:
    trace = copy.deepcopy(next(read_traces(str(GOLDEN)))[1])
    trace["steps"][3]["scheduled"] = {"nobody": 1}
    trace["steps"][3]["blocks"] = {"nobody": [1]}
    found = replay_trace("here", trace)
    assert found is not None
    assert "against" not in explain(found)
    assert RULES["against"] in " ".join(explain(found).split())
    later = replace(found, step=5, expected=trace["steps"][5])
    assert "before the step" not in explain(later)


# -- files, classes and the command ---------------------------------------------------------------


def test_plain_lines_and_standard_input() -> None:
    data = gzip.decompress(GOLDEN.read_bytes()).splitlines(keepends=True)[0]
    for sent in (data, gzip.compress(data)):
        out = subprocess.run(
            [sys.executable, "-m", "course.parity", "-"],
            cwd=ROOT,
            input=sent,
            capture_output=True,
            check=False,
        )
        assert (out.returncode, out.stderr) == (0, b"")
        assert out.stdout.startswith(b"1 traces, 34 steps, 0 differences")


def _falsify(change: Callable[[Any], None]) -> bytes:
    trace = json.loads(gzip.decompress(GOLDEN.read_bytes()).splitlines()[0])
    change(trace)
    return json.dumps(trace).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no trace"),
        (b"\n\n", "holds no trace"),
        (b"\n{]", ":2: not JSON"),
        (b"[" * 100_000, ":1: JSON nested too deep"),
        (b"[1]", "trace must be an object, got list"),
        (b"\xff\xfe", "cannot be read as a trace file"),
        (GOLDEN.read_bytes()[:2000], "cannot be read as a trace file"),
        (_falsify(lambda t: t.pop("steps")), "trace has no 'steps'"),
        (_falsify(lambda t: t["config"].pop("policy")), "config has no 'policy'"),
        (_falsify(lambda t: t["config"].update(policy="lifo")), "'lifo'"),
        (_falsify(lambda t: t["config"].update(block_size="16")), "'block_size' of config must"),
        (_falsify(lambda t: t["requests"][2].pop("prompt")), "request 2 has no 'prompt'"),
        (_falsify(lambda t: t["steps"][5].update(free=None)), "'free' of step 5 must be int"),
    ],
)
def test_a_bad_file_is_refused_with_its_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, message: str
) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_bytes(data)
    assert parity.main([str(file)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert str(file) in captured.err
    assert captured.out == ""


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read as a trace file"):
        list(read_traces(str(tmp_path / "none.jsonl")))


MINE = """
from mini_vllm.core.sched.scheduler import Scheduler as Reference
class Scheduler(Reference):
    pass
class Wrong(Reference):
    def __init__(self, config):
        super().__init__(config)
        self.max_num_running_reqs = 1
"""


def test_a_scheduler_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    assert parity.main([str(GOLDEN), "--scheduler", str(mine)]) == 0
    assert parity.main([str(GOLDEN), "--scheduler", f"{mine}:Wrong"]) == 1
    out = capsys.readouterr().out
    assert f"here: Wrong of {mine}" in out
    assert "(a trace stops at its first)" in out
    assert (
        parity.main([str(GOLDEN), "--scheduler", "mini_vllm.core.sched.scheduler:Scheduler"]) == 0
    )


def test_what_is_not_written_yet_is_no_difference(
    tmp_path: Path, golden: list[tuple[str, Trace]], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from mini_vllm.core.sched import scheduler as given\n"
        "class Scheduler(given.Scheduler):\n"
        "    def _schedule_waiting(self, step):\n"
        "        raise NotImplementedError\n"
    )
    assert parity.main([str(GOLDEN), "--scheduler", str(mine)]) == 2
    said = capsys.readouterr()
    assert "not written yet" in said.err
    assert "mine.py:4 in _schedule_waiting" in said.err
    assert said.out == ""
    with pytest.raises(NotImplementedError):
        replay_trace(*golden[0], parity.load_class(str(mine)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:Scheduler", "No module named 'no_such_module'"),
        ("none.py:Scheduler", "there is no file"),
        ("mini_vllm.core.sched.scheduler:Nope", "mini_vllm.core.sched.scheduler has no class Nope"),
    ],
)
def test_a_scheduler_that_is_not_there(
    capsys: pytest.CaptureFixture[str], spec: str, message: str
) -> None:
    assert parity.main([str(GOLDEN), "--scheduler", spec]) == 2
    assert message in capsys.readouterr().err


# -- workloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_workloads_repeat_and_can_run(shape: str) -> None:
    for seed in range(3):
        work = workload(seed, shape)
        assert work == workload(seed, shape)
        config: Config = work["config"]
        room = (config["num_blocks"] - 1) * config["block_size"]
        for q in work["requests"]:
            assert 0 < len(q["prompt"]) < config["max_model_len"]
            assert min(len(q["prompt"]) + q["max_tokens"], config["max_model_len"]) <= room
        # The engine takes it, and comes to an end.
        trace = record(work, mini_parts(config))
        assert set(trace["final"]) == {q["id"] for q in work["requests"]}
        assert replay_trace(shape, trace) is None
    assert workload(1, shape) != workload(2, shape)


@pytest.mark.parametrize(
    ("shape", "key", "usual"),
    [
        ("no-chunks", "enable_chunked_prefill", True),
        ("no-gate", "scheduler_reserve_full_isl", True),
        ("short-model", "max_model_len", 256),
    ],
)
def test_a_shape_reaches_what_it_is_for(shape: str, key: str, usual: object) -> None:
    """With the usual setting in place of the shape's own, some decision is another."""
    noticed = 0
    for seed in range(101, 107):
        work = workload(seed, shape)
        trace = record(work, mini_parts(work["config"]))
        trace["config"][key] = usual  # type: ignore[literal-required]
        noticed += replay_trace(shape, trace) is not None
    assert noticed >= 3


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown shape 'round'; one of mixed"):
        workload(1, "round")


def test_tokens_are_spread_and_sometimes_end() -> None:
    tokens = [token(i, pos) for i in range(40) for pos in range(40)]
    assert set(tokens) == {2, *range(3, 51)}
    assert 0.02 < tokens.count(2) / len(tokens) < 0.05


def test_ids_are_shortened_about_a_place() -> None:
    assert ids([]) == "none"
    assert ids([1, 2, 3]) == "1 2 3"
    assert ids(list(range(20))) == "0 1 2 .. 17 18 19 (20)"
    assert ids(list(range(20)), at=10) == ".. 8 9 10 11 12 13 .. (20, from 8)"
