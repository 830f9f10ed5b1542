"""Fingerprints: which tests each known mistake of a lab fails, and how, in its `proof/fingerprints.json`.

`course grade` compares a learner's failures with them and so runs no mistake. A fingerprint says what it was
taken of, as a digest: once the solution, the tests, what they share or the mistake's own lines have changed,
docstrings aside, it is stale and no longer counts. `course author contract --write` takes it anew.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.learner.labs import FINGERPRINTS, PROOF, CourseError, is_test_file
from course.learner.mistakes import Mistake, read_mistakes
from course.learner.own_words import speaks
from course.learner.results import LabRun, TestResult

_APART = (PROOF, "starter.py")  # no verdict on a mistake depends on them
_APART_SUFFIX = re.compile(r"\.(md|svg|png|pyc)$")
_DECIMAL = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)")
_DIGEST = r"error [0-9a-f]{10}"
_FOLDERS = re.compile(r"(?<![\w./\\])(?:[A-Za-z]:)?[/\\](?:[\w.@+-]+[/\\])+")  # of an absolute path


@dataclass(frozen=True)
class Fingerprint:
    """What a run's tests say of a file.

    Attributes:
        fails: the tests that it fails, each with its `signature`.
        passes: the tests that it passes. Of any other test this says nothing: it was skipped, or not reached.
    """

    fails: Mapping[str, str]
    passes: frozenset[str]

    @classmethod
    def of(cls, run: LabRun) -> Fingerprint:
        passes = frozenset(test.name for test in run.tests if test.outcome == "passed")
        return cls({test.name: signature(test) for test in run.bad}, passes)

    @property
    def tests(self) -> frozenset[str]:
        """The tests that this says something of."""
        return self.passes | self.fails.keys()

    def among(self, tests: frozenset[str]) -> Fingerprint:
        """The same, as far as it is about `tests`."""
        fails = {name: said for name, said in self.fails.items() if name in tests}
        return Fingerprint(fails, self.passes & tests)

    def agreed(self, other: Fingerprint) -> Fingerprint:
        """The same, as far as `other` says so too."""
        differ = {
            name for name in self.tests | other.tests if self._says(name) != other._says(name)
        }
        return self.among(self.tests - differ)

    def _says(self, test: str) -> str | None:
        return self.fails.get(test, "passed" if test in self.passes else None)


def signature(test: TestResult) -> str:
    """What two failures of a test agree in, or not: the outcome, and a digest of the message.

    All numbers of a message count, because two mistakes in one formula may differ in nothing else. Fractions
    are rounded, for the last digits are those of the order in which somebody adds. Left out are an address in
    memory, the folders of an absolute path, a line's number, the name that conftest.py gives to the file's
    module, and the words with which the graded file refuses something: of such an error its type counts.
    """
    if test.outcome == "time":
        return "time"
    in_file = test.file is not None and not is_test_file(test.file)
    if test.outcome == "error" and in_file and speaks(test.code):
        return f"error {test.raised or test.message.split(':')[0]}"
    text = test.message
    for words in sorted(test.own_words, key=len, reverse=True):
        text = text.replace(words, "…")
    text = re.sub(r"\b0x[0-9a-f]+\b", "0x", text)
    text = re.sub(r"\blines? \d+(?: and \d+)*\b(?!:)", "line", text)
    text = re.sub(r"\blab_\w+_[0-9a-f]{8}\b", "lab", text)
    text = _FOLDERS.sub("", text)
    text = re.sub(r"^\w+\.py has no ", "it has no ", text)
    text = _DECIMAL.sub(lambda match: f"{float(match[0]):.5g}", text)
    digest = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
    return f"{test.outcome} {digest[:10]}"


def is_hidden(mine: str, theirs: str) -> bool:
    """Whether the signature `mine` may hide `theirs`: an error that the learner's file raises in words of its
    own stands before whatever the test had to say, and two errors are alike in other words."""
    refuses = re.fullmatch(r"error [A-Za-z_]\w*", mine) and not re.fullmatch(_DIGEST, mine)
    return bool(refuses) or (mine.startswith("error") and theirs.startswith("error"))


# -- the file -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """A lab's `proof/fingerprints.json`.

    Attributes:
        files: the files of the lab that the fingerprints depend on, but for the mistakes themselves.
        entries: by the mistake's key, what it was taken of, and the fingerprint.
    """

    files: tuple[str, ...]
    entries: dict[str, tuple[str, Fingerprint]]

    def fresh(self, mistake: Mistake) -> Fingerprint | None:
        """The fingerprint of `mistake`; None where there is none, or it is stale."""
        of, found = self.entries.get(mistake.key, ("", None))
        return found if found is not None and of == _digest(mistake, self.files) else None


def read_record(folder: Path) -> Record:
    """What is kept of the lab in `folder`; nothing where there is no file. CourseError as `parse_record`."""
    path = folder / FINGERPRINTS
    return parse_record(path.read_bytes(), path) if path.is_file() else Record((), {})


def parse_record(text: str | bytes, path: Path | str) -> Record:
    """The record that stands in `text`.

    Raises CourseError naming `path` where it is not of the form that `write_record` gives it.
    """
    try:
        content = json.loads(text)
        tests = frozenset(content["tests"])
        entries = {}
        for key, entry in content["mistakes"].items():
            fails = dict(entry["fails"])
            passes = tests - fails.keys() - frozenset(entry.get("unknown", ()))
            entries[key] = (str(entry["of"]), Fingerprint(fails, passes))
        return Record(tuple(content["files"]), entries)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        said = f"{path} is no record of fingerprints ({error!r})"
        raise CourseError(f"{said}; delete it, and run course author contract --write") from None


def known(folder: Path) -> list[tuple[Mistake, Fingerprint]]:
    """The mistakes of the lab in `folder` whose fingerprints are not stale."""
    record = read_record(folder)
    found = [(mistake, record.fresh(mistake)) for mistake in read_mistakes(folder)]
    return [(mistake, fingerprint) for mistake, fingerprint in found if fingerprint is not None]


def stale(folder: Path) -> list[Mistake]:
    """The mistakes of the lab in `folder` that have no fingerprint, or one of something else."""
    record = read_record(folder)
    return [mistake for mistake in read_mistakes(folder) if record.fresh(mistake) is None]


def write_record(folder: Path, taken: Mapping[str, Fingerprint]) -> None:
    """Keep the fingerprints `taken`, by the mistakes' keys, and of the others those that are not stale."""
    files = _files(folder)
    mistakes = read_mistakes(folder)
    record = read_record(folder)
    found: dict[str, Fingerprint] = {}
    for mistake in mistakes:
        fingerprint = taken.get(mistake.key) or record.fresh(mistake)
        if fingerprint is not None:
            found[mistake.key] = fingerprint
    tests = frozenset[str]().union(*(one.tests for one in found.values()))
    digests = {mistake.key: _digest(mistake, files) for mistake in mistakes}
    entries = {key: _entry(digests[key], one, tests) for key, one in found.items()}
    content = {"files": files, "tests": sorted(tests), "mistakes": entries}
    (folder / FINGERPRINTS).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _entry(of: str, one: Fingerprint, tests: frozenset[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"of": of, "fails": dict(sorted(one.fails.items()))}
    unknown = sorted(tests - one.tests)
    return entry | ({"unknown": unknown} if unknown else {})


def _files(folder: Path) -> list[str]:
    """What a verdict on a mistake depends on: solution, tests, what they share, the files that these name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    names = {name: path for name, path in names.items() if name.split("/")[0] not in _APART}
    found: list[str] = []
    new = [name for name in names if name == "solution.py" or is_test_file(name)]
    while new:
        found += new
        texts = [names[name].read_text("utf-8") for name in new if name.endswith(".py")]
        words = {word for text in texts for word in re.findall(r"[\w.-]+", text)}
        new = [
            name
            for name, path in names.items()
            if name not in found and not _APART_SUFFIX.search(name)
            and (path.name in words or (path.parent != folder and path.parent.name in words))
        ]  # fmt: skip
    return sorted(found)


def _digest(mistake: Mistake, files: Sequence[str]) -> str:
    state = hashlib.sha256(f"{mistake.change.strip()}\0{mistake.append.strip()}".encode())
    for name in files:
        path = mistake.folder / name
        content = path.read_bytes().replace(b"\r\n", b"\n") if path.is_file() else b"gone"
        content = _without_docstrings(content) if name.endswith(".py") else content
        state.update(b"\0" + name.encode() + b"\0" + content)
    return state.hexdigest()[:16]


def _without_docstrings(source: bytes) -> bytes:
    """Python without its docstrings: in other words they say of a mistake what they said before."""
    lines = source.split(b"\n")
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno or 0
            lines[first - 1 : last] = [b""] * (last - first + 1)
    return b"\n".join(line for line in lines if line.strip())
