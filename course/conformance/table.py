"""What each test came to, what `expected.tsv` says that it comes to, and the difference between the two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

EXPECTED = Path(__file__).parent / "expected.tsv"
PASSES, OUTSIDE = "passes", "outside"
LACKS, DIFFERS, FAILS = "lacks ", "differs: ", "fails: "
UNEXPLAINED = "not explained yet: "
_HEAD = "# Written by `python -m course.conformance --write`; the reasons of `differs` are written by hand.\n"


@dataclass(frozen=True)
class Outcome:
    """One test of one run.

    Attributes:
        test: its id below `tests/v1/`, or below `tests/`.
        outcome: passed, failed or skipped.
        entered: a line of `mini_vllm` ran in it.
        missing: the feature that it asked for in vain; None if for none.
        error: the error's type and message, on one line; empty if there was none.
    """

    test: str
    outcome: str
    entered: bool = False
    missing: str | None = None
    error: str = ""


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """The outcomes that a run has recorded, by test."""
    rows = (Outcome(**json.loads(line)) for line in path.read_text("utf-8").splitlines())
    return {row.test: row for row in rows}


def verdict(ours: Outcome | None) -> str:
    """What a test that vLLM passes comes to on `mini_vllm`."""
    if ours is None:
        return FAILS + "it was not run"
    if ours.missing is not None and (ours.entered or ours.outcome != "passed"):
        return LACKS + ours.missing
    if ours.outcome != "passed":
        return FAILS + (ours.error or ours.outcome)
    return PASSES if ours.entered else OUTSIDE


def verdicts(theirs: Mapping[str, Outcome], ours: Mapping[str, Outcome]) -> dict[str, str]:
    """The verdict on each test that vLLM passes, in the order of its run."""
    passed = [test for test, row in theirs.items() if row.outcome == "passed"]
    return {test: verdict(ours.get(test)) for test in passed}


def read_expected(path: Path = EXPECTED) -> dict[str, str]:
    """The committed verdicts, by test. Raises ValueError naming a line that is none."""
    expected: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        test, tab, word = line.partition("\t")
        known = word in (PASSES, OUTSIDE) or word.startswith((LACKS, DIFFERS))
        if not tab or not known or test in expected:
            raise ValueError(
                f"{path.name}, line {number}: no verdict on a test of its own: {line!r}"
            )
        expected[test] = word
    return expected


def agree(expected: str, got: str) -> bool:
    """Whether a run's verdict is the expected one: a failure is what `differs` expects."""
    return got.startswith(FAILS) if expected.startswith(DIFFERS) else expected == got


def compare(expected: Mapping[str, str], got: Mapping[str, str], only: str = "") -> list[str]:
    """A line for each test on which the table and the run do not agree, whichever has it.

    Args:
        only: look at the tests whose id holds this.
    """
    lines = []
    for test in sorted({*expected, *got}):
        table = expected.get(test, "not in the table")
        run = got.get(test, "not passed by vLLM in this run")
        if only in test and not agree(table, run):
            lines.append(f"{test}\n    table: {table}\n    run:   {run}")
    return lines


def update(expected: Mapping[str, str], got: Mapping[str, str]) -> dict[str, str]:
    """The run's verdicts as a table: a failure keeps the reason that it had, or says that it has none."""
    table = {}
    for test, run in got.items():
        before = expected.get(test, "")
        if run.startswith(FAILS):
            explained = before.startswith(DIFFERS) and UNEXPLAINED not in before
            run = before if explained else DIFFERS + UNEXPLAINED + run
        table[test] = run
    return table


def write_expected(table: Mapping[str, str], path: Path = EXPECTED) -> None:
    lines = [f"{test}\t{word}\n" for test, word in sorted(table.items())]
    path.write_text(_HEAD + "".join(lines), encoding="utf-8")
