"""Grading for a reader who watches: each result as it comes, then the report in their place."""

from __future__ import annotations

from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from course.learner.desk import Desk
from course.learner.grade import Grade, failed_before, run_lab
from course.learner.judge import judge
from course.learner.labs import Lab
from course.learner.report import STYLES, show_advice, show_head, show_run
from course.learner.results import LabRun, lines_of, unloadable

_BAR = 30  # characters
_AROUND = 8  # lines of a window that the results leave free


def bar(done: int, total: int) -> str:
    """`[######------]`, and the two numbers."""
    full = _BAR * done // total if total else 0
    return f"[{'#' * full}{'-' * (_BAR - full)}] {done} of {total}"


def grade_aloud(desk: Desk, lab: Lab, last: LabRun | None = None) -> Grade:
    """Grade `lab`, and print what comes of it. `last` is as in `run_lab`.

    On a terminal, each test is a line as it ends, and the report takes their place. Elsewhere the report
    comes when the tests are through.
    """
    show_head(desk.console, desk.course, lab)
    if desk.console.is_terminal:
        begin = Text("running the tests …", style="dim")
        with Live(begin, console=desk.console, transient=True, auto_refresh=False) as live:

            def show(so_far: LabRun) -> None:
                live.update(_so_far(so_far, desk.console.height - _AROUND), refresh=True)

            run = run_lab(desk.course, lab, desk.progress, show, last)
    else:
        run = run_lab(desk.course, lab, desk.progress, last=last)
    graded = judge(lab, run, desk.progress)
    show_run(desk.console, graded)
    first = failed_before(last)
    if first and unloadable(run) is None and set(first) & set(failed_before(run)):
        desk.say(f"Run first: the {len(first)} that did not pass before. The others count as then, "
                 "and are run again once these pass.", "dim")  # fmt: skip
    show_advice(desk.console, desk.course, graded)
    return graded


def _so_far(run: LabRun, height: int) -> Group:
    lines = lines_of(run)
    ended = [line for line in lines if line.word != "----"]
    table = Table.grid(padding=(0, 2))
    table.add_column(width=4)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for line in ended[-max(1, height) :]:
        what = line.shown.doc or line.shown.base
        table.add_row(Text(line.word, style=STYLES[line.word]), Text(what))
    return Group(Padding(table, (0, 0, 1, 1)), Text(f"{bar(len(ended), len(lines))} tests"))
