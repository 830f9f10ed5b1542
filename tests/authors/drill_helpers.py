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


def section(phase: Path) -> str:
    """What a phase's exercises say of breakpoints."""
    page = (phase / "EXERCISES.md").read_text("utf-8")
    return page.split("\n## Breakpoints\n")[1].split("\n## ")[0]


def drills(page: str) -> dict[str, str]:
    """Title -> what to type."""
    return dict(re.findall(r"^\*\*\d+\.\*\* ([^.]+)\..*?```text\n(.*?)```", page, re.M | re.S))


def unsolved(page: str, printed: dict[str, list[str]]) -> list[str]:
    """Those of the printed lines that the page's solutions do not show."""
    return [line for lines in printed.values() for line in lines if f"`{line}`" not in page]


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
