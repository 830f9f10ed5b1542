"""A lab's untouched starter, and putting it back.

Where the untouched starter comes from: the commit that last changed the lab's `solution.py` or
its tests is an author's, so its tree holds the author's starter; a later commit counts only if its
starter has as many functions to write. Without git it is the copy that `course` took when it first
met the lab, as long as something was still unwritten.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from course.learner.labs import Course, CourseError, Lab
from course.learner.progress import state_folder, write_atomically
from course.learner.stubs import unwritten


def keep_untouched(course: Course, lab: Lab) -> None:
    """Copy starter.py aside, once, while something in it is not written yet."""
    copy = state_folder(course.root) / "starters" / f"{lab.id}.py"
    if copy.exists() or not lab.starter.is_file():
        return
    source = lab.starter.read_text(encoding="utf-8", errors="replace")
    if unwritten(source):
        copy.parent.mkdir(exist_ok=True)
        write_atomically(copy, source)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        out = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, check=False, text=True,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except OSError:
        return None
    return out.stdout if out.returncode == 0 else None


def _from_git(course: Course, lab: Lab) -> tuple[str, str] | None:
    folder = f"{lab.folder.relative_to(course.root).as_posix()}"
    top = (_git(course.root, "rev-parse", "--show-prefix") or "").strip()
    authors = _git(
        course.root, "log", "-1", "--format=%H", "--",
        *(f"{folder}/{name}" for name in ("solution.py", "test_lab*.py", "support.py", "conftest.py")),
    )  # fmt: skip
    if not authors or not authors.strip():
        return None
    best: tuple[str, str] | None = None
    later = _git(
        course.root, "log", "--reverse", "--format=%H", f"{authors.strip()}..HEAD", "--",
        f"{folder}/starter.py",
    )  # fmt: skip
    for commit in [authors.strip(), *(later or "").split()]:
        source = _git(course.root, "show", f"{commit}:{top}{folder}/starter.py")
        if source is None:
            continue
        if best is None or len(unwritten(source)) >= len(unwritten(best[1])):
            best = (f"commit {commit[:10]}", source)
    return best if best is not None and unwritten(best[1]) else None


def changed(course: Course, labs: Sequence[Lab]) -> list[Lab]:
    """Those of `labs` whose starter.py is not as the last commit has it, or as it was when it was copied."""
    paths = [lab.starter.relative_to(course.root).as_posix() for lab in labs]
    said = _git(course.root, "diff", "--name-only", "--relative", "HEAD", "--", *paths)
    differ = set(said.splitlines()) if said is not None else set()

    def is_changed(lab: Lab, path: str) -> bool:
        copy = course.root / ".course" / "starters" / f"{lab.id}.py"
        text = lab.starter.read_text(encoding="utf-8", errors="replace")
        return path in differ or (copy.is_file() and copy.read_text(encoding="utf-8") != text)

    return [lab for lab, path in zip(labs, paths, strict=True) if is_changed(lab, path)]


def untouched(course: Course, lab: Lab) -> tuple[str, str]:
    """Where the untouched starter of `lab` comes from, in words, and its source.

    Raises CourseError where it cannot be had.
    """
    if (found := _from_git(course, lab)) is not None:
        return found
    copy = course.root / ".course" / "starters" / f"{lab.id}.py"
    if copy.is_file():
        return "the copy taken when the course first met this lab", copy.read_text(encoding="utf-8")
    raise CourseError(
        f"no untouched starter of {lab.id} is to be had: git knows none, and no copy was taken. "
        f"Fetch {course.show(lab.starter)} from where you got the course."
    )


def reset(course: Course, lab: Lab, source: str) -> Path | None:
    """Put `source` in the place of starter.py. Returns the backup of what was there, if anything."""
    backup = None
    if lab.starter.is_file():
        folder = state_folder(course.root) / "backups" / lab.id
        folder.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        backup = folder / f"starter-{stamp}.py"
        number = 1
        while backup.exists():
            number += 1
            backup = folder / f"starter-{stamp}-{number}.py"
        backup.write_bytes(lab.starter.read_bytes())
    write_atomically(lab.starter, source)
    return backup
