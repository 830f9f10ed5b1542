"""What a learner's failures look like: a comparison with the fingerprints of known mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from course.learner.fingerprints import Fingerprint, is_hidden
from course.learner.mistakes import Mistake


@dataclass(frozen=True)
class Likeness:
    """What a learner's failures look like.

    Attributes:
        mistakes: one, or two.
        sure: everything agrees; otherwise a part does.
        explained: the failed tests that they explain.
        together: two mistakes at once; otherwise two are one or the other.
    """

    mistakes: tuple[Mistake, ...]
    sure: bool
    explained: frozenset[str] = frozenset()
    together: bool = False

    @property
    def sentence(self) -> str:
        """For the learner: “This looks like …”, or, where only a part agrees, “This may be …”."""
        names = [f"“{mistake.name.rstrip('.')}”" for mistake in self.mistakes]
        begin = "This looks like" if self.sure else "This may be"
        return f"{begin} {(', and also ' if self.together else ' or ').join(names)}."


def looks_like(mine: Fingerprint, known: Iterable[tuple[Mistake, Fingerprint]]) -> Likeness | None:
    """The known mistakes that explain what `mine` fails; None where none does, or nobody can tell.

    A mistake explains a failure if it fails the same test with the same message. It looks like a mistake
    that explains every failure, and itself fails nothing more. It may be one that explains at least half of
    them, or two that explain all: then something else is wrong besides. Compared are the tests of which both
    say something: one that needs a function not written yet, or torch, does not count.

    An error that the learner's own file raises in a test hides what the test would have said. So where that
    leaves no mistake to name, one that fails exactly these tests may be it, if the messages of all other
    tests agree, and there is one.

    Nothing is said where no assertion tells anything (the tests hang, or end in other errors), where
    three or more mistakes fit, and, unless every failure is explained, where more than half of the tests
    fail: many a fault fails them all.
    """
    telling = {said for said in mine.fails.values() if said.startswith("failed")}
    if not telling:
        return None
    known = list(known)
    whole: list[tuple[Mistake, Set[str]]] = []
    sure = True
    part: list[tuple[Mistake, Set[str]]] = []
    for mistake, fingerprint in known:
        both = mine.tests & fingerprint.tests
        theirs, ours = fingerprint.among(both).fails, mine.among(both).fails
        if theirs and theirs == ours:
            whole.append((mistake, theirs.keys()))
        elif theirs and all(ours.get(name) == said for name, said in theirs.items()):
            part.append((mistake, theirs.keys()))
    if not whole and not part:
        hidden = [(mistake, theirs) for mistake, theirs in known if _hidden(mine, theirs)]
        whole = [(mistake, mine.fails.keys() & theirs.fails.keys()) for mistake, theirs in hidden]
        sure = False
    most = 2 * len(mine.fails) > len(mine.tests)
    if whole and (len(telling) > 1 or not most):
        return _name(whole, sure) if len(whole) <= 2 else None
    likeness = _parts(mine.fails.keys(), part)
    return None if most and likeness is not None and not likeness.together else likeness


def _hidden(mine: Fingerprint, theirs: Fingerprint) -> bool:
    """Whether both fail the same tests, and differ only where an error of the file itself ends a test."""
    both = mine.tests & theirs.tests
    ours, said = mine.among(both).fails, theirs.among(both).fails
    if ours.keys() != said.keys():
        return False
    differ = {name for name in ours if ours[name] != said[name]}
    told = {name for name in ours.keys() - differ if ours[name].startswith("failed")}
    return bool(told) and all(is_hidden(ours[name], said[name]) for name in differ)


def _parts(mine: Set[str], found: Sequence[tuple[Mistake, Set[str]]]) -> Likeness | None:
    """The mistake, or the two, that explain enough of the failures in `mine`, of which each explains some."""
    if not found:
        return None
    size = max(len(explained) for _, explained in found)
    best = [(mistake, explained) for mistake, explained in found if len(explained) == size]
    for index, one in enumerate(found):
        for other in found[index + 1 :]:
            if one[1] | other[1] == mine and not one[1] & other[1]:
                return _name([one, other], sure=False, together=True)
    if 2 * size < len(mine) or len(best) > 2:
        return None
    return _name(best, sure=False)


def _name(
    found: Sequence[tuple[Mistake, Set[str]]], sure: bool, together: bool = False
) -> Likeness:
    explained = frozenset[str]().union(*(tests for _, tests in found))
    return Likeness(tuple(mistake for mistake, _ in found), sure, explained, together)
