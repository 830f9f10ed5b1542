"""Changes of the engine that a page shows, made in a copy, and what its commands then print.

A page names the file that a ```diff block is for in a comment on the line above it:

    <!-- change: mini_vllm/core/block_pool.py -->

The block's lines begin with a blank, `-` or `+`; a line `@@` parts two places. All changes of one
`<details>` are made together, and each captured output after them, in the same one, is of the changed engine.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course.docs.pages import ROOT, Page
from tests.engine.helpers.patience import PATIENCE

_CHANGE = re.compile(r"^\s*<!--\s*change:\s*(?P<path>\S+)\s*-->\s*$")


@dataclass
class Answer:
    """One answer of a page that changes the engine.

    Attributes:
        line: the page's line of its first change.
        changes: a file, the lines to be replaced, and the lines to replace them with.
        outputs: a command, and what the page says that it prints.
    """

    line: int
    changes: list[tuple[str, str, str]] = field(default_factory=list)
    outputs: list[tuple[str, str]] = field(default_factory=list)


def answers(page: Page) -> list[Answer]:
    """Every answer of a page that changes the engine."""
    found: list[Answer] = []
    ends = [at for at, line in enumerate(page.lines, 1) if line.strip() == "</details>"]
    diffs = {fence.first: fence for fence in page.fences if fence.language == "diff"}
    outputs = {block.first: block for block in page.outputs}
    end = 0
    for at in sorted([*diffs, *outputs]):
        if at in diffs:
            named = _CHANGE.match(page.lines[at - 2])
            if named is None:
                continue
            if at > end:
                found.append(Answer(at))
                end = next(last for last in ends if last > at)
            found[-1].changes += [(named["path"], *hunk) for hunk in _hunks(diffs[at].body)]
        elif at < end:
            body = [line for line in outputs[at].body if not line.startswith("```")]
            found[-1].outputs.append((outputs[at].head.rsplit(" | ", 3)[0], "\n".join(body)))
    return found


def _hunks(lines: Sequence[str]) -> list[tuple[str, str]]:
    """What a diff takes out and what it puts there, place by place."""
    places: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("@@"):
            places.append([])
        else:
            places[-1].append(line)
    return [
        (
            "".join(f"{line[1:]}\n" for line in place if not line.startswith("+")),
            "".join(f"{line[1:]}\n" for line in place if not line.startswith("-")),
        )
        for place in places
    ]


def make_changes(answer: Answer, folder: Path) -> None:
    """Lay a changed `mini_vllm` into the folder; what a change does not touch is a link.

    Raises ValueError if lines that are to be replaced do not stand in their file exactly once.
    """
    package = ROOT / "mini_vllm"
    (folder / package.name).mkdir(parents=True, exist_ok=True)
    touched = {path.split("/")[1] for path, _, _ in answer.changes}
    for inside in package.iterdir():
        place = folder / package.name / inside.name
        if inside.is_dir() and inside.name in touched:
            shutil.copytree(inside, place, ignore=shutil.ignore_patterns("__pycache__"))
        elif inside.name != "__pycache__":
            place.symlink_to(inside)
    for path, old, new in answer.changes:
        file = folder / path
        text = file.read_text("utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{path} has these lines {text.count(old)} times, not once:\n{old}")
        file.write_text(text.replace(old, new), "utf-8")


def printed(command: str, folder: Path) -> str:
    """What a command prints on the engine in the folder, run from the repository's root."""
    words = shlex.split(command)
    assert words[0] == "python", f"only Python is run here, not {words[0]!r}"
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        check=False,
    )
    return (done.stdout + done.stderr).strip()
