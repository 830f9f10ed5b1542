"""The breakpoint drills of every phase's exercises, typed into the debugger, and what else a script owes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from drill_helpers import commands, drills, printed, printed_each, sections

from course.docs.pages import ROOT
from tests.engine.helpers.patience import PATIENCE

SCRIPTS = sorted(ROOT.glob("phase-*/*drill.py"))
CASES = [
    pytest.param(page, script, engine, title, id=f"{script.stem}-{engine or 'mini_vllm'}-{title}",
                 marks=[pytest.mark.vllm] if engine else [])
    for page in sections()
    for script, engine in commands(page)
    for title in drills(page)
]  # fmt: skip


@pytest.mark.parametrize(("page", "script", "engine", "title"), CASES)
def test_a_drill_prints_what_its_solution_says(
    page: str, script: Path, engine: str, title: str
) -> None:
    """On each engine that the page names: it says that they print the same."""
    found, arguments = drills(page), filter(None, [engine])
    typed, said = found[title]
    if "no model" in page:  # where one has run, its threads are there, and no process may fork
        every = {each: typed for each, (typed, _) in found.items()}
        assert printed_each(script, every, *arguments)[title] == said
    else:
        assert printed(script, typed, *arguments) == said


def test_every_drill_is_found() -> None:
    """Each script by a page, each item of a page with what to type and what is printed."""
    assert {script for page in sections() for script, _ in commands(page)} == {*SCRIPTS}
    for page in sections():
        assert len(drills(page)) == len(re.findall(r"^\*\*\d+\.\*\*", page, re.M)), page[:80]
        assert all(said for _, said in drills(page).values()), page[:80]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_the_debuggers_q_ends_a_drill_without_a_traceback(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, script], input="q\n", capture_output=True, text=True, timeout=PATIENCE,
        cwd=ROOT, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
