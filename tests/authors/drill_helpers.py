"""The breakpoint drills of a phase's exercises, and what the debugger prints of one that is typed in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from course.docs.pages import ROOT


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
    """Tuples, lists and strings that the debugger's `p` printed, without vLLM's random ends of ids."""
    done = subprocess.run(
        [sys.executable, script, *engine],
        input=typed + "q\n",
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONBREAKPOINT": "pdb.set_trace"},
    )
    lines = [line.split("(Pdb) ")[-1] for line in done.stdout.split("\n") if "(Pdb) " in line]
    values = [re.sub(r"(?<=[a-z])-[0-9a-f]{8}'", "'", line) for line in lines]
    return [value for value in values if re.match(r"[(\[']", value)]
