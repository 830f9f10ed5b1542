"""Known mistakes: a lab's `wrong/*.py`, and whether a learner's failures look like one.

What a wrong solution fails is its fingerprint.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from course.learner.labs import CourseError
from course.learner.results import BAD, LabRun, TestResult


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


_DECIMAL = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)")


@dataclass(frozen=True)
class Likeness:
    """What a learner's failures look like.

    Attributes:
        mistakes: one, or two.
        sure: everything agrees; otherwise a part does.
        together: two mistakes at once; otherwise two are one or the other.
    """

    mistakes: tuple[Mistake, ...]
    sure: bool
    together: bool = False

    @property
    def sentence(self) -> str:
        """For the learner: “This looks like …”, or, where only a part agrees, “This may be …”."""
        names = [f"“{mistake.name.rstrip('.')}”" for mistake in self.mistakes]
        begin = "This looks like" if self.sure else "This may be"
        return f"{begin} {(', and also ' if self.together else ' or ').join(names)}."


def _comparable(test: TestResult) -> tuple[str, str]:
    """What two failures of a test agree in, or not: the outcome, and the message.

    All its numbers count, because two mistakes in one formula may differ in nothing else. Fractions
    are rounded, for the last digits are those of the order in which somebody adds; an address in memory
    is left out, and so is the name that conftest.py gives to the file's module.
    """
    text = re.sub(r"\b0x[0-9a-f]+\b", "0x", test.message)
    text = re.sub(r"\blab_\w+_[0-9a-f]{8}\b", "lab", text)
    text = _DECIMAL.sub(lambda match: f"{float(match[0]):.5g}", text)
    return test.outcome, " ".join(text.split())


def looks_like(run: LabRun, fingerprints: Iterable[tuple[Mistake, LabRun]]) -> Likeness | None:
    """The known mistakes that explain what `run` fails; None where none does, or nobody can tell.

    A mistake explains a failure if its own run fails the same test with the same message. It looks
    like a mistake that explains every failure, and itself fails nothing more. It may be one that
    explains at least half of them, or two that explain all: then something else is wrong besides.
    Tests that `run` could not reach, because a function is not written yet, do not count.

    Nothing is said where no assertion tells anything (the tests hang, or end in other errors), where
    three or more mistakes fit, and, unless every failure is explained, where more than half of the tests
    fail: many a fault fails them all.
    """
    reached = {test.name for test in run.tests if test.outcome in ("passed", *BAD)}
    mine = {test.name: _comparable(test) for test in run.bad if test.outcome != "syntax"}
    telling = {message for outcome, message in mine.values() if outcome == "failed"}
    if run.problem is not None or not telling:
        return None
    whole: list[Mistake] = []
    part: list[tuple[Mistake, Set[str]]] = []
    for mistake, wrong in fingerprints:
        theirs = {t.name: _comparable(t) for t in wrong.bad if t.name in reached}
        if theirs == mine:
            whole.append(mistake)
        elif theirs and all(mine.get(name) == said for name, said in theirs.items()):
            part.append((mistake, theirs.keys()))
    most = 2 * len(mine) > len(reached)
    if whole and (len(telling) > 1 or not most):
        return Likeness(tuple(whole), sure=True) if len(whole) <= 2 else None
    likeness = _parts(mine.keys(), part)
    return None if most and likeness is not None and not likeness.together else likeness


def _parts(mine: Set[str], found: Sequence[tuple[Mistake, Set[str]]]) -> Likeness | None:
    """The mistake, or the two, that explain enough of the failures in `mine`, of which each explains some."""
    if not found:
        return None
    size = max(len(explained) for _, explained in found)
    best = [(mistake, explained) for mistake, explained in found if len(explained) == size]
    for index, (mistake, explained) in enumerate(found):
        for other, more in found[index + 1 :]:
            if explained | more == mine and not explained & more:
                return Likeness((mistake, other), sure=False, together=True)
    if 2 * size < len(mine) or len(best) > 2:
        return None
    return Likeness(tuple(mistake for mistake, _ in best), sure=False)
