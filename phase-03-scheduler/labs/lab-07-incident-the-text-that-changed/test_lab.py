"""Lab 03-07: what the trace says, and whether your test can tell a right engine from a wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from course.learner.labs import load_support

support = load_support(__file__)
TRACE: list[dict[str, Any]] = support.lines("tuesday.jsonl")
TEXTS = {(a["day"], a["id"]): a["text"] for a in support.lines("answers.jsonl")}
BLOCK_SIZE = 16


def arrived() -> dict[str, dict[str, Any]]:
    return {one["id"]: one for record in TRACE for one in record.get("arrives", ())}


class Read(NamedTuple):
    """A block that a request attended over, and that held something else than its own tokens."""

    step: int
    request: str
    block: int
    writer: str


def foreign_reads() -> Iterator[Read]:
    """Who wrote each slot last, against what its reader takes it for. Equal salt and position: the same
    question, so that what one Gil wrote is right for the other."""
    salts = {name: one["cache_salt"] for name, one in arrived().items()}
    held: dict[tuple[int, int], tuple[str, int]] = {}
    for record in TRACE:
        for name, (first, end) in record["computes"].items():
            for position in range(first, end):
                block = record["tables"][name][position // BLOCK_SIZE]
                held[block, position % BLOCK_SIZE] = (name, position)
        for name, (_, end) in record["computes"].items():
            for index in range(end // BLOCK_SIZE):
                block = record["tables"][name][index]
                first = index * BLOCK_SIZE
                slots = [held[block, offset] for offset in range(BLOCK_SIZE)]
                if any(
                    salts[who] != salts[name] or at != first + offset
                    for offset, (who, at) in enumerate(slots)
                ):
                    yield Read(record["step"], name, block, slots[0][0])


READS = list(foreign_reads())


# ---- the trace -----------------------------------------------------------------------------------


def test_who_was_told_something_else(lab: ModuleType) -> None:
    """The question is the same on all three days, so the answer should be, too."""
    changed = lab.diagnose().changed
    right = TEXTS["wednesday", "gil-2"]
    for name in changed:
        assert ("tuesday", name) in TEXTS, f"changed: nobody was called {name!r} on Tuesday"
        assert arrived()[name]["cache_salt"] == "gil", (
            f"changed: {name} asked something else than Gil did, and was told the same on both days"
        )
    wrong = [i for (day, i), text in TEXTS.items() if day == "tuesday" and i in ("gil-2", "gil-4")]
    wrong = [name for name in wrong if TEXTS["tuesday", name] != right]
    assert sorted(changed) == wrong, (
        f"changed: {changed}. Alone on Wednesday Gil was told {right!r}; compare each of Tuesday's "
        "answers to his question with that"
    )


def test_the_step_that_was_taken_back(lab: ModuleType) -> None:
    """One step scheduled tokens for a request, and took them back before they were computed."""
    found = lab.diagnose()
    [record] = [r for r in TRACE if r["preempted"]]
    assert found.withdrawn_in == record["step"], (
        f"withdrawn_in: step {found.withdrawn_in}. Look for the step that preempts somebody"
    )
    assert [found.victim] == record["preempted"], (
        f"victim: {found.victim!r}. Step {record['step']} names who was preempted"
    )


def test_the_block(lab: ModuleType) -> None:
    """The block was published in the step that preempted, under the hash of a text that no step put there."""
    found = lab.diagnose()
    read = READS[0]
    [step] = [r for r in TRACE if r["preempted"]]
    before = TRACE[step["step"] - 1]["published"]
    name = step["published"].get(str(found.block))
    assert name is not None, f"block: {found.block} is not published after step {step['step']}"
    assert before.get(str(found.block)) != name, (
        f"block: {found.block} is published as {name} before step {step['step']} already, by a step that "
        "computed it"
    )
    assert found.block == read.block, (
        f"block: {found.block}. Which block changes its name in step {step['step']} although that step "
        "computes nothing in it?"
    )


def test_what_it_found_and_what_was_there(lab: ModuleType) -> None:
    """The difference between two numbers, tokens found and tokens computed, is the fault."""
    found = lab.diagnose()
    back = next(r for r in TRACE if r["step"] > READS[0].step - 1 and "gil-2" in r["computes"])
    start = back["computes"]["gil-2"][0]
    assert found.found == start, (
        f"found: {found.found}. In step {back['step']} gil-2 begins to compute at position {start}: so many "
        "tokens it took from the cache"
    )
    lost = next(r["step"] for r in TRACE if r["preempted"])
    done = max(
        r["computes"]["gil-2"][1] for r in TRACE if r["step"] < lost and "gil-2" in r["computes"]
    )
    assert found.computed == done, (
        f"computed: {found.computed}. Add up what the steps before {lost} computed of gil-2; what step "
        f"{lost} had planned for it is not among it"
    )


def test_what_was_read_instead(lab: ModuleType) -> None:
    """The slots held what the last request to write there had left."""
    found = lab.diagnose()
    read = READS[0]
    assert found.written_by != "hal-3", (
        "written_by: hal-3 took the other one of the two blocks; see its table in step 6"
    )
    assert found.written_by == read.writer, (
        f"written_by: {found.written_by!r}. Go back from step {read.step}: which step computed positions "
        f"that the table of their request puts into block {read.block}?"
    )


def test_the_cause(lab: ModuleType) -> None:
    """One of the six causes agrees with everything in the trace and the answers."""
    cause = lab.diagnose().cause
    against = {
        "A": "in no step does a block stand in two tables",
        "B": "block 2 is found under gil-2's own hash, by gil-2, and no block has another request's name",
        "C": "nobody finds a block that is published as eve-1's; the block had Gil's name when it was found",
        "E": "gil-2 goes on at position 80 of 96, which is right after what it found",
        "F": "gil-2 computes positions up to 119: 96 of prompt and 23 of its 24 outputs",
    }
    assert cause in lab.CAUSES, f"cause: {cause!r} is none of {', '.join(lab.CAUSES)}"
    assert cause not in against, f"cause {cause}, “{lab.CAUSES[cause]}”: but {against[cause]}"


# ---- your test -----------------------------------------------------------------------------------


def verdict(lab: ModuleType, make_engine: Any) -> str | None:
    """What your test says against the engine; None if it lets it pass."""
    try:
        lab.incident_test(make_engine)
    except AssertionError as error:
        return str(error) or "AssertionError"
    return None


def test_your_test_fails_on_the_pin(lab: ModuleType) -> None:
    """Your test fails on the pin, here a small stand-in that does what vLLM 0.22.1 does."""
    said = verdict(lab, support.Engine)
    assert said is not None, (
        "your test passes on an engine that does what the pin does. In the first case of `GIVEN` somebody is "
        "told something that the same request is not told alone"
    )


@pytest.mark.parametrize("engine", support.GOOD, ids=lambda e: e.__name__)
def test_your_test_passes_on_every_mend(lab: ModuleType, engine: Any) -> None:
    """Your test passes on every correct engine: there are many ways to be right."""
    said = verdict(lab, engine)
    assert said is None, (
        f"your test fails on an engine that is right. What it does: {engine.__doc__} Your test said: {said}"
    )


@pytest.mark.parametrize("engine", support.BAD, ids=lambda e: e.__name__)
def test_your_test_fails_on_every_bad_mend(lab: ModuleType, engine: Any) -> None:
    """Your test fails on every bad fix: those that go too far, not far enough, or somewhere else."""
    said = verdict(lab, engine)
    assert said is not None, (
        f"your test passes on an engine that is wrong. What it does: {engine.__doc__}"
    )
