"""Known mistakes: a lab's `wrong/*.py`, and whether a learner's failures look like one.

What a wrong solution fails is its fingerprint.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from course.learner.labs import CourseError
from course.learner.results import BAD, LabRun


@dataclass(frozen=True)
class Mistake:
    """A wrong solution of a lab: the file, its docstring's first line, the hint after it, and the
    test that refuses it."""

    path: Path
    name: str
    hint: str
    test: str


def read_mistake(path: Path) -> Mistake:
    """What the docstring of a `wrong/*.py` says: a name, a hint, and last ``Refused by `test_x`.``

    Raises CourseError where one of the three is missing.
    """
    doc = ast.get_docstring(ast.parse(path.read_bytes(), str(path))) or ""
    name, _, hint = doc.partition("\n\n")
    paragraphs = [" ".join(part.split()) for part in hint.split("\n\n") if part.strip()]
    refused = re.fullmatch(r"Refused by `(test_\w+)`\.", paragraphs[-1]) if paragraphs else None
    if not name.strip() or not paragraphs or (refused and len(paragraphs) < 2):
        raise CourseError(
            f"{path}: the docstring begins with the mistake's name, and its second paragraph is "
            "the hint"
        )
    if refused is None:
        raise CourseError(
            f"{path}: the docstring ends with 'Refused by `test_…`.', the test it fails"
        )
    return Mistake(path, " ".join(name.split()), paragraphs[0], refused[1])


def _same(message: str) -> str:
    return re.sub(r"[-+]?\d[\d_,.e+-]*", "#", message)


def looks_like(run: LabRun, fingerprints: Iterable[tuple[Mistake, LabRun]]) -> list[Mistake]:
    """The known mistakes that fail what `run` fails, the best first; most often one or none.

    Tests that `run` could not reach, because a function is not written yet, do not count. Where
    several mistakes fail the same tests, the one that gives the same messages is meant. Where none
    fails exactly the same, those count whose every failure is in `run`, message and all.
    """
    mine = {test.name: _same(test.message) for test in run.bad if test.outcome != "syntax"}
    if not mine or run.problem is not None:
        return []
    reached = {test.name for test in run.tests if test.outcome in ("passed", *BAD)}
    same_tests: list[tuple[float, Mistake]] = []
    part: list[tuple[int, Mistake]] = []
    for mistake, wrong in fingerprints:
        theirs = {t.name: _same(t.message) for t in wrong.bad if t.name in reached}
        agree = sum(mine.get(name) == message for name, message in theirs.items())
        if theirs.keys() == mine.keys():
            same_tests.append((agree / len(mine), mistake))
        elif theirs and agree == len(theirs):
            part.append((agree, mistake))
    if same_tests:
        best = max(score for score, _ in same_tests)
        return [mistake for score, mistake in same_tests if score == best]
    part.sort(key=lambda pair: -pair[0])
    return [mistake for _, mistake in part[:2]]
