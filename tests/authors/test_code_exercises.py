"""Exercises that change the engine: the change of each solution is made in a copy, and its output compared.

In a solution a ```diff block names a file behind `---` and shows the lines that go, come and stay. The
```text block after it is what the exercise's last example prints with that change. What it prints without
the change stands in the question, as a doctest that runs like any other.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from course.docs.pages import ROOT
from tests.engine.helpers.patience import PATIENCE

PAGES = sorted(ROOT.glob("phase-*/EXERCISES.md"))
_EXERCISE = re.compile(r"^(?=\*\*\d+\.\*\* |## )", re.M)
_CHANGE = re.compile(r"^```diff\n--- (\S+)\n(.*?)^```\n\n^```text\n(.*?)^```$", re.M | re.S)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Change:
    """One change of a solution.

    Attributes:
        page: the exercises.
        number: of the exercise, and of the change in its solution.
        path: the file that changes, from the root.
        diff: its lines, each with its sign or a blank before it.
        lines: what is run, the page's set-up first.
        printed: by the last of them, with the change.
    """

    page: Path
    number: str
    path: str
    diff: list[str]
    lines: str
    printed: str


def changes(page: Path) -> list[Change]:
    """All changes of a page's solutions."""
    head, *exercises = _EXERCISE.split(page.read_text("utf-8"))
    found = []
    for text in exercises:
        question, _, solution = text.partition("<details>")
        for i, (path, diff, printed) in enumerate(_CHANGE.findall(solution), 1):
            number = f"{text[2:].partition('.')[0]}.{i}"
            lines = "\n".join(_PYTHON.findall(head) + _PYTHON.findall(question))
            found.append(Change(page, number, path, diff.splitlines(), lines, printed))
    return found


def change_file(file: Path, diff: list[str]) -> None:
    """Make the change where its lines that go and stay are found, which must be one place."""
    old = [line[1:] for line in diff if line[:1] != "+"]
    new = [line[1:] for line in diff if line[:1] != "-"]
    text = file.read_text("utf-8").split("\n")
    at = [i for i in range(len(text)) if text[i : i + len(old)] == old]
    assert len(at) == 1, f"{file.name} has these lines {len(at)} times:\n" + "\n".join(old)
    text[at[0] : at[0] + len(old)] = new
    file.write_text("\n".join(text), "utf-8")


def copy_repository(to: Path, phase: Path) -> None:
    """What a change may touch as copies, the engine and the phase's own files, and all else as links."""
    heavy = shutil.ignore_patterns("__pycache__", "checkpoints")
    shutil.copytree(ROOT / "mini_vllm", to / "mini_vllm", ignore=heavy)
    (to / "mini_vllm" / "checkpoints").symlink_to(ROOT / "mini_vllm" / "checkpoints")
    (to / phase.name).mkdir()
    for file in phase.iterdir():
        if file.is_file():
            shutil.copy(file, to / phase.name)
    for entry in ROOT.iterdir():
        if entry.is_dir() and not entry.name.startswith(".") and not (to / entry.name).exists():
            (to / entry.name).symlink_to(entry)


EVERY = [change for page in PAGES for change in changes(page)]


@pytest.mark.parametrize("change", EVERY, ids=lambda c: f"{c.page.parent.name[:8]}-{c.number}")
def test_the_change_prints_what_the_solution_shows(change: Change, tmp_path: Path) -> None:
    phase = change.page.parent
    copy_repository(tmp_path, phase)
    change_file(tmp_path / change.path, change.diff)
    before, _, example = change.lines.rstrip().rpartition("\n>>> ")
    assert "\n..." not in example, "the last example must be one line"
    line = example.partition("\n")[0]
    page = f"```python\n{before}\n>>> {line}\n{change.printed}\n```\n"
    (tmp_path / phase.name / "changed.md").write_text(page, "utf-8")
    run = (
        "from pathlib import Path; from course.docs.examples import check_examples;"
        "from course.docs.pages import read_page; import mini_vllm;"
        "print(mini_vllm.__file__);"
        "problems, ran = check_examples(read_page(Path('changed.md').resolve(), Path.cwd()));"
        "print(*problems, sep='\\n'); raise SystemExit(bool(problems) or not ran)"
    )
    done = subprocess.run(
        [sys.executable, "-c", run],
        cwd=tmp_path / phase.name,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert str(tmp_path / "mini_vllm") in done.stdout, done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
