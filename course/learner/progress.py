"""What a reader has done so far: `.course/progress.json` below the root.

The folder holds its own `.gitignore`, so nothing in it is ever committed. The file is replaced whole,
by a rename, so that a crash leaves the old one or the new one. A file that cannot be read is moved
aside, never overwritten: `course grade --all` finds out again what passes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from course.learner.labs import CourseError, Lab

VERSION = 2  # 1 had the number of hints seen in the place of their names


def state_folder(root: Path) -> Path:
    """`.course/`, made where it is missing."""
    folder = root / ".course"
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("# What one reader has done; made by the command course.\n*\n", "utf-8")
    return folder


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`; nobody ever sees half of it."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _replace(Path(name), path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _replace(new: Path, path: Path) -> None:
    """Windows refuses this while another program, a virus scanner say, has one of the two open: try again."""
    for pause in (0.05, 0.2, 0.5):
        with contextlib.suppress(PermissionError):
            new.replace(path)
            return
        time.sleep(pause)
    new.replace(path)


def digest(path: Path) -> str:
    """The content of `path` as 16 hexadecimal digits; "" if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def now() -> str:
    """The local time, to the second, as ISO 8601 with its offset."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


@dataclass
class LabProgress:
    """One lab.

    Attributes:
        attempts: how often it was graded.
        hints: the hints that were shown: a number in HINTS.md, or what mistakes.toml calls a mistake.
        passed, failed: tests at the last grading that passed, and that did not. `failed` is 0 only
            where the lab passed, or was never graded.
        passed_at: when it first passed, or None. A lab once passed stays done.
        passed_digest: the starter.py that last passed; None once that very file has failed.
        failing: the tests that failed at the last grading, in the order in which it showed them.
        causes: the function of starter.py that each of them is about; "" where nothing says.
        likely: the known mistakes that it looked like.
        named: those that it or a grading before it looked like, since the lab last passed.
    """

    attempts: int = 0
    hints: list[str] = field(default_factory=list)
    passed: int = 0
    failed: int = 0
    passed_at: str | None = None
    passed_digest: str | None = None
    failing: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    likely: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.passed_at is not None

    @property
    def tests(self) -> str:
        return f"{self.passed} of {self.passed + self.failed} tests"


NOTHING = LabProgress()


class Progress:
    """The progress file of the repository at `root`.

    `notice` is called with a sentence for the user when a damaged file was moved aside.
    Raises CourseError where the file is from a newer version of the course.
    """

    def __init__(self, root: Path, notice: Callable[[str], None] | None = None) -> None:
        self.root = root
        self.path = root / ".course" / "progress.json"
        self._notice = notice or (lambda text: print(f"course: {text}", file=sys.stderr))
        self.labs = self._read()

    def __getitem__(self, lab: Lab) -> LabProgress:
        return self.labs.get(lab.id, NOTHING)

    def changed_since(self, lab: Lab) -> bool:
        """Whether starter.py is another than the one that passed."""
        passed = self[lab].passed_digest
        return passed is not None and passed != digest(lab.starter)

    def fails_now(self, lab: Lab) -> bool:
        """Whether a lab once passed failed when it was last graded, and what passed is not back."""
        entry = self[lab]
        return entry.done and entry.failed > 0 and entry.passed_digest != digest(lab.starter)

    @contextlib.contextmanager
    def update(self, lab: Lab) -> Iterator[LabProgress]:
        """Change what is kept of `lab`; written when the block is left without an exception.

        The file is read again first, under a lock: `course watch` may be running beside this.
        """
        with _locked(state_folder(self.root) / "lock"):
            self.labs = self._read()
            entry = self.labs.setdefault(lab.id, LabProgress())
            yield entry
            content = {
                "version": VERSION,
                "labs": {name: vars(value) for name, value in sorted(self.labs.items())},
            }
            write_atomically(self.path, json.dumps(content, indent=2) + "\n")

    def _read(self) -> dict[str, LabProgress]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            content = json.loads(data)
            version = content["version"]
            if isinstance(version, int) and version > VERSION:
                raise CourseError(
                    f"{self.path} has format {version}, this course writes {VERSION}: "
                    "it is from a newer course. Update the repository, or move the file away."
                )
            if version not in (1, VERSION):
                raise TypeError(f"version is {version!r}")
            labs = content["labs"]
            if version == 1:
                labs = {name: values | _named_hints(values) for name, values in labs.items()}
            return {name: _entry(values) for name, values in labs.items()}
        except CourseError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            aside = self._move_aside()
            self._notice(
                f"{self.path} could not be read ({type(error).__name__}: {error}). It is kept as "
                f"{aside.name}, and progress begins anew; 'course grade --all' finds what passes."
            )
            return {}

    def _move_aside(self) -> Path:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        aside = self.path.with_name(f"progress.damaged-{stamp}.json")
        number = 1
        while aside.exists():
            number += 1
            aside = self.path.with_name(f"progress.damaged-{stamp}-{number}.json")
        self.path.rename(aside)
        return aside


_TYPES: dict[str, tuple[type, ...]] = {
    "attempts": (int,),
    "hints": (list,),
    "passed": (int,),
    "failed": (int,),
    "passed_at": (str, type(None)),
    "passed_digest": (str, type(None)),
    "failing": (list,),
    "causes": (list,),
    "likely": (list,),
    "named": (list,),
}


def _named_hints(values: dict[str, Any]) -> dict[str, list[str]]:
    """The hints that an entry of format 1 counts: they were shown in their order."""
    return {"hints": [str(number + 1) for number in range(values.get("hints", 0))]}


def _entry(values: dict[str, Any]) -> LabProgress:
    for name, value in values.items():
        if name not in _TYPES or not isinstance(value, _TYPES[name]) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}")
        if isinstance(value, list) and not all(isinstance(one, str) for one in value):
            raise TypeError(f"{name} is {value!r}")
    return LabProgress(**values)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that other processes respect."""
    with path.open("ab") as file:
        try:
            import fcntl
        except ImportError:  # Windows
            msvcrt: Any = importlib.import_module("msvcrt")
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # a byte, which need not be there
        else:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
