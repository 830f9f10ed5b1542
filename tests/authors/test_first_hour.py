"""A newcomer's first hour, in a fresh copy of the repository, command by command.

No network and no installer: the running interpreter, its packages, and the copy before them on the
path, with the metadata that an installer would have written.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from course_helpers import ROOT, run_module, write_metadata

from course.learner.hints import read_hints
from course.learner.labs import Lab, load_course
from course.learner.stubs import unwritten

pytest.importorskip("typer")
pytest.importorskip("rich")

APART = shutil.ignore_patterns(
    ".git", ".venv", "venv", ".course", "__pycache__", "*_cache", ".hypothesis", "*.egg-info",
    "upstream", "golden", "build", "dist", "node_modules",
)  # fmt: skip


class Newcomer:
    """Types commands into the copy at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.out = self.err = ""

    def types(self, *command: str, expect: int = 0, cwd: Path | None = None) -> str:
        """Run `course …` or `mini-vllm …`; returns its output without line breaks."""
        module = {"mini-vllm": "mini_vllm.entrypoints.cli"}.get(command[0], command[0])
        done = run_module(cwd or self.root, module, *command[1:], path=(self.root,))
        self.out, self.err = done.stdout, done.stderr
        said = f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == expect, said
        assert "Traceback" not in said, said
        return " ".join(done.stdout.split())

    def pastes(self, lab: Lab) -> None:
        lab.starter.write_bytes(lab.solution.read_bytes())


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    root = tmp_path / "clone"
    shutil.copytree(ROOT, root, ignore=APART)
    write_metadata(root)
    return Newcomer(root)


def test_the_first_hour(newcomer: Newcomer) -> None:
    course = load_course(newcomer.root)
    first = course.resolve("00-01")
    phase = course.phase("00")
    assert first == phase.labs[0], "the course begins with lab 00-01"

    # What the README says to type first.
    newcomer.types("mini-vllm", "generate", "The KV cache", "--max-tokens", "24")
    assert newcomer.out.strip(), "the engine generates out of the box"

    # Where am I, and what is next?
    said = newcomer.types("course")
    assert f"0 of {len(course.labs)} labs done." in said
    assert f"Lab 00-01: {first.title}" in said
    said = newcomer.types("course", "next", cwd=newcomer.root / "mini_vllm")
    assert "course grade 00-01" in said
    assert course.show(first.starter) in said

    # The starter fails, and the message helps.
    said = newcomer.types("course", "grade", "00-01", expect=1)
    missing = sorted(unwritten(first.starter.read_text(encoding="utf-8")))
    assert missing
    assert any(f"not written yet: {name}" in said for name in missing), said
    assert "course hint 00-01" in said
    assert "NotImplementedError" not in said

    # Hints, one to last.
    hints = read_hints(first)
    for hint in hints:
        said = newcomer.types("course", "hint", "00-01")
        assert f"hint {hint.number} of {len(hints)}: {hint.title}" in said
    assert "course diff 00-01 --peek" in said
    newcomer.types("course", "diff", "00-01", expect=2)

    # The solution pasted in; it passes, from inside the lab's folder and without its name.
    newcomer.pastes(first)
    said = newcomer.types("course", "grade", cwd=first.folder)
    assert "Lab 00-01 passes" in said
    assert "No difference" in newcomer.types("course", "diff", "00-01")

    # Progress is kept, and the next lab comes up.
    kept = json.loads((newcomer.root / ".course" / "progress.json").read_text())
    assert kept["labs"]["00-01"]["attempts"] == 2
    assert kept["labs"]["00-01"]["passed_at"]
    second = course.labs[1]
    assert f"Lab {second.id}: {second.title}" in newcomer.types("course", "next")
    newcomer.types("course", "list")
    assert re.search(r"00-01 .*done$", newcomer.out, re.MULTILINE)

    # Their own sampler in the engine: refused as long as it is not written, then it runs.
    drawing = next(lab for lab in course.labs if lab.part == "sampler")
    command = ("mini-vllm", "generate", "The scheduler", "--max-tokens", "24", "--mine")
    newcomer.types(*command)
    reference = newcomer.out
    assert re.search(r"no lab begun, so the reference's: .*sampler", newcomer.err), newcomer.err
    newcomer.pastes(drawing)
    newcomer.types(*command)
    assert re.search(rf"sampler +yours +lab {drawing.id}: passes", newcomer.err), newcomer.err
    assert newcomer.out == reference
