"""Known mistakes: a lab's `proof/mistakes.toml`, and the solution with one of them in it.

    [starts_at_one]
    name = "The sum begins at 1."
    hint = "Nothing added up is 0."
    test = "test_total_of_nothing_is_zero"
    change = '''
    total
    - result = 0
    + result = 1
    '''

`change` is as `course.learner.patch` has it. What belongs to no function stands in `append`: lines for the
end of the module.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from course.learner.labs import MISTAKES, CourseError, Lab, load_module
from course.learner.patch import patched

_NEEDED, _EDITS = {"name", "hint", "test"}, {"change", "append"}


@dataclass(frozen=True)
class Mistake:
    """A mistake that people make in a lab.

    Attributes:
        folder: the lab's.
        key: what `mistakes.toml` calls it.
        name, hint: for a learner who has made it.
        test: the test that refuses it.
        change, append: what makes it of the solution.
    """

    folder: Path
    key: str
    name: str
    hint: str
    test: str
    change: str = ""
    append: str = ""

    @property
    def text(self) -> str:
        """The solution with this mistake in it.

        Raises CourseError naming the mistake where its change cannot be made.
        """
        solution = (self.folder / "solution.py").read_text(encoding="utf-8")
        try:
            text = patched(solution, self.change)
        except CourseError as error:
            raise CourseError(f"{MISTAKES}: {self.key}: {error}") from None
        return f"{text}\n\n{self.append.strip()}\n" if self.append.strip() else text

    def load(self) -> ModuleType:
        """The module with this mistake, which finds the files that the solution finds."""
        return load_module(self.folder / "solution.py", f"mistake_{self.key}", self.text)


def read_mistakes(folder: Path) -> list[Mistake]:
    """The mistakes of the lab in `folder`, in their order; none where it has no `mistakes.toml`.

    Raises CourseError naming the entry that is not of the form above.
    """
    path = folder / MISTAKES
    if not path.is_file():
        return []
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"{path}: {error}") from None
    return [_read(folder, key, entry) for key, entry in entries.items()]


def _read(folder: Path, key: str, entry: object) -> Mistake:
    where = f"{folder / MISTAKES}: {key}"
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise CourseError(f"{where}: a mistake is a table of texts")
    if missing := sorted(_NEEDED - {field for field, value in entry.items() if value.strip()}):
        raise CourseError(f"{where}: {', '.join(missing)} missing")
    if unknown := sorted(entry.keys() - _NEEDED - _EDITS):
        raise CourseError(f"{where}: unknown key {', '.join(unknown)}")
    if not _EDITS & entry.keys():
        raise CourseError(f"{where}: neither change nor append, so it is the solution")
    words = {field: " ".join(entry[field].split()) for field in _NEEDED}
    edits = {field: entry[field] for field in _EDITS & entry.keys()}
    return Mistake(folder, key, **words, **edits)


def find_mistake(lab: Lab, key: str) -> Mistake:
    """The mistake of `lab` called `key`; CourseError with those that there are for any other."""
    mistakes = {mistake.key: mistake for mistake in read_mistakes(lab.folder)}
    if key not in mistakes:
        there = ", ".join(mistakes) or "none"
        raise CourseError(f"{lab.id} has no mistake {key!r}; it has {there}")
    return mistakes[key]


def write_out(mistakes: Iterable[Mistake], folder: Path) -> list[Path]:
    """Write each mistake's whole text into `folder`, beside copies of the files that its solution finds."""
    paths = []
    homes: set[Path] = set()
    for mistake in mistakes:
        home = folder / mistake.folder.parent.parent.name / mistake.folder.name
        if home not in homes:
            homes.add(home)
            shutil.copytree(mistake.folder, home, ignore=shutil.ignore_patterns("__pycache__"))
        path = home / f"{mistake.key}.py"
        path.write_text(mistake.text, encoding="utf-8")
        paths.append(path)
    return paths
