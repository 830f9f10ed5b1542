"""The breakpoint drills of a phase's exercises, and what the debugger prints of one that is typed in."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from course.docs.pages import ROOT
from tests.engine.helpers.patience import PATIENCE


def sections() -> list[str]:
    """What the exercises of each phase that has any say of breakpoints."""
    pages = [page.read_text("utf-8") for page in sorted(ROOT.glob("phase-*/EXERCISES.md"))]
    parts = [page.split("\n## Breakpoints\n") for page in pages]
    return [rest[0].split("\n## ")[0] for _, *rest in parts if rest]


def commands(page: str) -> list[tuple[Path, str]]:
    """Script and engine ("" or "vllm") of each command that starts a drill."""
    found = re.findall(r"^python (phase-\S+)(?: (\w+))?", page, re.M)
    return [(ROOT / script, engine) for script, engine in found]


def drills(page: str) -> dict[str, tuple[str, list[str]]]:
    """Title -> what to type, and what its solution says is printed then, line by line."""
    item = r"^\*\*\d+\.\*\* ([^.]+)\.(?:(?!^\*\*).)*?```text\n(.*?)```\n(.*?)</details>"
    return {
        title: (typed, re.findall(r"`([(\['][^`]*)`", solution))
        for title, typed, solution in re.findall(item, page, re.M | re.S)
    }


def printed(script: Path, typed: str, *engine: str) -> list[str]:
    """What the debugger's `p` printed, of one drill typed in at the script's breakpoint."""
    return _values(_run(script, *engine, typed=typed + "q\n", PYTHONBREAKPOINT="pdb.set_trace"))


def printed_each(script: Path, drills: dict[str, str], *engine: str) -> dict[str, list[str]]:
    """The same of several drills, title by title, from one start of the script (see `drill_fork`)."""
    return _printed_each(script, tuple(drills.items()), engine)


@functools.cache
def _printed_each(
    script: Path, drills: tuple[tuple[str, str], ...], engine: tuple[str, ...]
) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        for number, (_, typed) in enumerate(drills):
            (Path(folder) / f"{number}.in").write_text(typed + "q\n", "utf-8")
        _run(script, *engine, DRILLS=folder, PYTHONBREAKPOINT="drill_fork.stop")
        outs = [
            (Path(folder) / f"{number}.out").read_text("utf-8") for number in range(len(drills))
        ]
    return {title: _values(out) for (title, _), out in zip(drills, outs, strict=True)}


def _run(script: Path, *arguments: str, typed: str = "", **environment: str) -> str:
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, script, *arguments],
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | {"PYTHONPATH": path} | environment,
    )
    return done.stdout


def _values(out: str) -> list[str]:
    """Tuples, lists and strings that the debugger's `p` printed, without vLLM's random ends of ids."""
    lines = [line.split("(Pdb) ")[-1] for line in out.split("\n") if "(Pdb) " in line]
    values = [re.sub(r"(?<=[a-z])-[0-9a-f]{8}'", "'", line) for line in lines]
    return [value for value in values if re.match(r"[(\[']", value)]
