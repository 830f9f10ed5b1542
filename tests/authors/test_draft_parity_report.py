"""course.parity notices every difference in a trace with drafts, and names the rule.

As test_parity_report.py and test_async_parity_report.py do without drafts; what they share is tested there.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from draft_parity_faults import ASYNC_FAULTS, SYNC_FAULTS, NothingTakenBack

from course.parity import decisions as parity
from course.parity import explain, replay
from course.parity.rules import RULES
from course.parity.traces import Trace, drafted, is_async, read_traces, token, verified
from mini_vllm.trace.golden import Recording
from mini_vllm.trace.golden_async import AsyncRecording

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "drafts-0.22.1.jsonl.gz"


@pytest.fixture(scope="module")
def golden() -> list[tuple[str, Trace]]:
    """The traces of one KV cache group, whose rules the report can name."""
    traces = read_traces(str(GOLDEN))
    return [(where, t) for where, t in traces if "kv_cache_groups" not in t["config"]]


def _first(golden: list[tuple[str, Trace]], ahead: bool) -> Trace:
    return copy.deepcopy(next(t for _, t in golden if is_async(t) == ahead))


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("field", ["drafts", "computed"])
def test_every_field_is_compared(golden: list[tuple[str, Trace]], field: str, ahead: bool) -> None:
    """A recorded draft, or a counter after a rejection, that is another is a difference."""
    trace = _first(golden, ahead)
    steps: list[Any] = list(trace["steps"])
    at = next(i for i, s in enumerate(steps) if i > len(steps) // 3 and s.get(field))
    request_id = next(iter(steps[at][field]))
    if field == "drafts":
        steps[at][field][request_id][-1] += 7
    else:
        steps[at][field][request_id] += 1
    found = replay("here", trace)
    assert found is not None, "nobody noticed"
    assert (found.step, found.fields) == (at, (field,))
    report = " ".join(explain(found).split())
    assert RULES["drafts" if field == "drafts" else "rejected"] in report
    assert f"> {field}" in report


@pytest.mark.parametrize(
    ("fault", "ahead"), [(f, False) for f in SYNC_FAULTS] + [(f, True) for f in ASYNC_FAULTS]
)
def test_a_fault_is_found_and_its_rule_named(
    golden: list[tuple[str, Trace]], fault: str, ahead: bool
) -> None:
    """Each of the faults is seen by some of the committed traces, and a report says which rule it breaks."""
    scheduler_class, expected = (ASYNC_FAULTS if ahead else SYNC_FAULTS)[fault]
    traces = [(where, t) for where, t in golden if is_async(t) == ahead]
    found = [replay(where, trace, scheduler_class) for where, trace in traces]
    reports = [explain(each, scheduler_class) for each in found if each is not None]
    assert reports, "no trace notices"
    naming = [report for report in reports if expected in " ".join(report.split())]
    assert naming, f"no report says {expected!r}; the first one:\n{reports[0]}"


def test_a_report_shows_drafts_and_counters(golden: list[tuple[str, Trace]]) -> None:
    """The state before the step has a column of drafts, and both decisions show them."""
    traces = [(where, t) for where, t in golden if not is_async(t)]
    found = next(f for f in (replay(w, t, NothingTakenBack) for w, t in traces) if f is not None)
    report = explain(found, NothingTakenBack)
    header = next(line for line in report.splitlines() if "computed/tokens" in line)
    assert header.endswith("drafts"), header
    assert "the decisions differ in computed" in report
    assert "> computed\n    vLLM: " in report
    assert "  drafts: the same, r" in report


def test_the_rules_of_the_report_are_vllms(golden: list[tuple[str, Trace]]) -> None:
    """The walk through the rules comes to vLLM's decision on every request, at every step and in every
    plan, and to its counters after every result."""
    named: Counter[str] = Counter()

    def check(recording: Recording, where: str, decision: Any) -> None:
        for request_id, reason in recording.reasons.items():
            assert reason.rule != "against", f"{where}, {request_id}: {reason}"
            named[reason.rule] += 1
        assert recording.explainer.free == decision["free"], where
        computed(recording, where, decision)

    def computed(recording: Recording, where: str, decision: Any) -> None:
        for request_id, num_computed in decision.get("computed", {}).items():
            state = recording.explainer.states[request_id]
            assert state.num_computed_tokens == num_computed, f"{where}, {request_id}"

    for place, trace in golden:
        if not is_async(trace):
            recording = Recording(trace)
            for at, decision in enumerate(trace["steps"]):
                recording.step(at, decision, *recording.begin(at))
                check(recording, f"{place} step {at}", decision)
            continue
        ahead, turn = AsyncRecording(trace), 0
        for number, step in enumerate(trace["steps"]):
            call: Any = step
            if call["call"] == "update":
                ahead.update(call)
                computed(ahead, f"{place} call {number}", call)
                continue
            for idle in range(turn, call["turn"]):
                ahead.begin(idle)
            turn = call["turn"] + 1
            ahead.step(call["turn"], call, *ahead.begin(call["turn"]))
            check(ahead, f"{place} call {number}", call)
            states = ahead.explainer.states
            placeholders = {i: states[i].num_output_placeholders for i in call["scheduled"]}
            assert placeholders == call["placeholders"], f"{place} call {number}"
    assert named.keys() <= RULES.keys(), "a rule without a sentence"
    assert named["drafts"] > 500
    assert named["victim"] > 50
    assert named["end"] > 0


def test_drafts_are_a_pure_function_and_of_every_kind() -> None:
    """Some are right throughout, some nowhere, and lengths vary where they are to."""
    accepted: Counter[int] = Counter()
    for index in range(20):
        for pos in range(50):
            drafts = drafted(index, pos, 4)
            assert drafts == drafted(index, pos, 4)
            assert len(drafts) == 4
            got = verified(index, pos, drafts)
            assert got == [token(index, at) for at in range(pos, pos + len(got))]
            accepted[len(got) - 1] += 1
    assert set(accepted) == {0, 1, 2, 3, 4}
    assert {len(drafted(0, pos, 3, vary=True)) for pos in range(50)} == {0, 1, 2, 3}
    assert verified(0, 7, []) == [token(0, 7)]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("drafts", "has no 'drafts'"),
        ("computed", "has no 'computed'"),
        ("sampled", "has no 'sampled'"),
    ],
)
def test_a_trace_without_its_drafts_is_refused(
    golden: list[tuple[str, Trace]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    key: str,
    message: str,
) -> None:
    """A config with speculation and steps without drafts are no trace."""
    trace: Any = _first(golden, False)
    del trace["steps"][2][key]
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps(trace))
    assert parity.main([str(file)]) == 2
    assert message in capsys.readouterr().err
