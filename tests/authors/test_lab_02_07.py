"""Lab 02-07: its replay on every recording there is, and each of its wrong allocators refused.

The lab's own tests take nine recordings, for their time.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner import written as written_module
from course.learner.labs import load_module
from course.learner.mistakes import Mistake, read_mistakes
from course.parity.traces import Trace, read_traces
from course.parity.turns import Turns, follow

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "scheduler-0.22.1.jsonl.gz"
FULL_GOLDEN = ROOT.parent / "shared" / "golden" / "scheduler-0.22.1.jsonl.gz"
LAB = ROOT / "phase-02-paged-attention" / "labs" / "lab-07-same-as-vllm"
ALLOCATORS = [one for one in read_mistakes(LAB) if "make_manager" in one.change + one.append]


@functools.cache
def lab() -> ModuleType:
    return load_module(LAB / "solution.py", "lab_02_07_solution")


@functools.cache
def recordings(file: Path) -> list[tuple[Trace, list[Turns]]]:
    return [(trace, follow(trace)) for _, trace in read_traces(str(file))]


def differences(file: Path, make: Any) -> list[str]:
    reports = []
    for trace, steps in recordings(file):
        found = lab().first_difference(trace, steps, make)
        if found is not None:
            reports.append(lab().report(trace, found))
    return reports


def test_the_same_blocks_on_all_recordings() -> None:
    assert differences(GOLDEN, lab().make_manager) == []
    assert len(recordings(GOLDEN)) == 17


@pytest.mark.skipif(not FULL_GOLDEN.exists(), reason=f"no {FULL_GOLDEN}")
def test_the_same_blocks_on_the_whole_golden_file() -> None:
    assert differences(FULL_GOLDEN, lab().make_manager) == []
    assert len(recordings(FULL_GOLDEN)) == 80


@pytest.mark.parametrize("mistake", ALLOCATORS, ids=lambda mistake: mistake.key)
def test_a_wrong_allocator_differs(mistake: Mistake) -> None:
    make = mistake.load().make_manager
    assert differences(GOLDEN, make), f"{mistake.key} gives vLLM's blocks on all 17 recordings"


def test_there_are_wrong_allocators() -> None:
    names = {mistake.key for mistake in ALLOCATORS}
    assert names >= {"frees_head_first", "keeps_the_old_hash", "hashes_partial_blocks"}


def test_a_recording_that_nobody_decided_is_refused() -> None:
    trace, _ = recordings(GOLDEN)[0]
    steps = [dict(step) for step in trace["steps"]]
    steps[5]["free"] = 1
    forged: Any = {**trace, "steps": steps}
    with pytest.raises(ValueError, match="step 5: nothing known decides like this"):
        follow(forged)


def test_the_turns_are_the_decisions() -> None:
    """Who fits and keeps its blocks is who is scheduled, in order; the victims are the preempted."""
    for trace, steps in recordings(GOLDEN):
        for turns in steps:
            victims = [victim for turn in turns.turns for victim in turn.victims]
            served = [t.request_id for t in turns.turns if t.fits and t.request_id not in victims]
            where = f"seed {trace['seed']}"
            assert served == list(turns.decision["scheduled"]), where
            assert sorted(victims) == turns.decision["preempted"], where
            for turn in turns.turns:
                if turn.request_id in turns.decision["scheduled"]:
                    assert turn.num_tokens == turns.decision["scheduled"][turn.request_id], where


def test_a_class_of_another_lab_is_taken_when_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = written_module.written.__wrapped__
    assert written("01-05", "StopStringDetector") is None, "that starter leaves everything open"
    assert written("77-01", "BlockPool") is None
    monkeypatch.setattr(written_module, "unwritten", lambda source: set())
    found = written("01-05", "StopStringDetector")
    assert found.__name__ == "StopStringDetector"
    assert written("01-05", "NoSuchClass") is None


def test_the_report() -> None:
    """As the starter gives it: step, request, both tables about the place, the rule in words."""
    given = load_module(LAB / "starter.py", "lab_02_07_starter")
    trace: Any = recordings(GOLDEN)[0][0] | {"seed": 7}
    long = list(range(10, 26))
    for difference, want in (
        (
            given.Difference(12, "r3", [4, 9, 2, 11], [4, 9, 11], "hit"),
            ["seed 7, step 12, request r3", "vLLM   4 9 2 11", "here   4 9 11", given.RULES["hit"]],
        ),
        (
            given.Difference(3, "r0", long, [*long[:10], 7, *long[11:]], "order"),
            [
                "seed 7, step 3, request r0",
                "vLLM   .. 18 19 20 21 22 23 .. (16, from 8)",
                "here   .. 18 19 7 21 22 23 .. (16, from 8)",
                given.RULES["order"],
            ],
        ),
        (
            given.Difference(1, "r1", [1, 2, 3], [1, 2], "length"),
            ["seed 7, step 1, request r1", "vLLM   1 2 3", "here   1 2", given.RULES["length"]],
        ),
        (
            given.Difference(0, "r1", None, [1, 2], "gate"),
            ["seed 7, step 0, request r1", "vLLM   no blocks", "here   1 2", given.RULES["gate"]],
        ),
        (
            given.Difference(0, "r1", None, long, "gate"),
            [
                "seed 7, step 0, request r1",
                "vLLM   no blocks",
                "here   10 11 12 .. 23 24 25 (16)",
                given.RULES["gate"],
            ],
        ),
        (
            given.Difference(2, "r1", long, long[:12], "hit"),
            [
                "seed 7, step 2, request r1",
                "vLLM   .. 20 21 22 23 24 25 (16, from 10)",
                "here   .. 20 21 (12, from 10)",
                given.RULES["hit"],
            ],
        ),
        (
            given.Difference(2, "r1", [1], [], "length"),
            ["seed 7, step 2, request r1", "vLLM   1", "here   none", given.RULES["length"]],
        ),
        (
            given.Difference(0, "r1", [1, 2], None, "raised", "too few"),
            [
                "seed 7, step 0, request r1",
                "vLLM   1 2",
                "here   no blocks",
                given.RULES["raised"],
                "too few",
            ],
        ),
        (
            given.Difference(8, "", [5], [4], "free"),
            ["seed 7, step 8", "vLLM   5", "here   4", given.RULES["free"]],
        ),
    ):
        got = given.report(trace, difference).splitlines()
        for line, wanted in zip([*got, *[""] * len(want)], want, strict=False):
            assert line == wanted, f"a line of the report is “{line}”, should be “{wanted}”"
        assert len(got) == len(want), f"the report has {len(got)} lines, should have {len(want)}"
