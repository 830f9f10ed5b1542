"""How grades are shown: one line a test, and below a failure what it teaches."""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from course.authors.mutants import Mutant
from course.authors.mutate import ALLOW_LIST, MutationResult
from course.learner.grade import Grade
from course.learner.labs import Course, is_test_file
from course.learner.results import LabRun, Line, TestResult, lines_of
from course.learner.shorten import shorten

MOST_LINES = 40  # of a lab that does not pass, on a window 100 wide: what a screen holds
_FAILURES = 22  # lines of them for failures
_MOST_NOTES = 5
_MOST_PRINTED = 4
_WIDE = 160  # characters of a line that the learner's code printed
_STYLES = {"pass": "green", "FAIL": "bold red", "todo": "yellow", "skip": "dim", "----": "dim"}


def make_console(stderr: bool = False) -> Console:
    """A console; lines are 100 wide where nothing says how wide the window is."""
    console = Console(highlight=False, stderr=stderr)
    if console.is_terminal:
        return console
    stream = _Tidy(sys.stderr if stderr else sys.stdout)
    return Console(highlight=False, file=cast("IO[str]", stream), width=100)


class _Tidy(io.TextIOBase):
    """Passes text on without the blanks that rich fills its lines up with."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(re.sub(r"[ \t]+(?=\n)", "", text))
        return len(text)

    def flush(self) -> None:
        self.stream.flush()


def unloadable(run: LabRun) -> TestResult | None:
    """What keeps the file from being loaded, if that is what every test fails of."""
    failed = [test for test in run.tests if test.outcome != "not_run"]
    if not failed or any(t.outcome not in ("syntax", "error", "time") for t in failed):
        return None
    first = failed[0]
    same = all(
        (t.file, t.line, t.message) == (first.file, first.line, first.message) for t in failed
    )
    at_top = first.outcome == "syntax" or (first.function is None and first.file is not None)
    in_tests = first.file is not None and is_test_file(first.file)
    return first if same and at_top and not in_tests else None


def show_grade(console: Console, course: Course, graded: Grade) -> None:
    """Print a grade: the tests, what failures look like, and what to do next."""
    lab, run = graded.lab, graded.run
    console.print(Text.assemble(("Lab " + lab.id, "bold"), f"  {lab.title}"))
    console.print(Text(course.show(lab.starter), style="dim"), soft_wrap=True)
    console.print()
    broken = unloadable(run)
    if broken is not None:
        console.print(Text(f"{lab.starter.name} cannot be loaded, so no test could run."))
        console.print(Padding(Group(*_where(broken), Text(shorten(broken.message))), (0, 0, 1, 2)))
    lines = lines_of(run)
    table = Table.grid(padding=(0, 2))
    table.add_column(width=4)
    table.add_column(overflow="fold")
    if broken is None and any(line.word == "FAIL" for line in lines):
        _add_failures(table, console, lines)
    else:
        _add_all(table, lines, broken is not None)
    console.print(Padding(table, (0, 0, 0, 1)))
    console.print()
    if run.problem is not None:
        console.print(Text(run.problem, style="bold"))
    count = {word: sum(line.word == word for line in lines) for word in _STYLES}
    if run.passed:
        skipped = f" {count['skip']} could not run here." if count["skip"] else ""
        console.print(
            Text(f"Lab {lab.id} passes: {_tests(count['pass'])}.{skipped}", style="bold green")
        )
        console.print(
            Text(f"See how the course writes it: course diff {lab.id}. Go on: course next")
        )
        return
    if broken is None and lines:
        parts = [f"{count['pass']} of {_tests(len(lines))} pass"]
        parts += [f"{count['FAIL']} fail"] if count["FAIL"] else []
        parts += [f"{count['todo']} wait for what is not written yet"] if count["todo"] else []
        parts += [f"{count['skip']} could not run here"] if count["skip"] else []
        console.print(Text(", ".join(parts) + ".", style="bold"))
    if graded.likeness is not None:
        console.print(Text(graded.likeness.sentence))
        for mistake in graded.likeness.mistakes:
            console.print(Padding(Text(mistake.hint), (0, 0, 0, 2)))
    plain = f"LAB_IMPL=starter pytest {course.show(lab.folder)}"
    console.print(Text(f"Stuck? course hint {lab.id}. Every detail: {plain}"), soft_wrap=True)


def _tests(number: int) -> str:
    return f"{number} test" if number == 1 else f"{number} tests"


def _add_all(table: Table, lines: list[Line], broken: bool) -> None:
    """One line a test: nothing failed, or nothing could run."""
    open_function: str | None = None
    for line in lines:
        word = "----" if broken else line.word
        todo = line.shown.function if word == "todo" else None
        if todo is not None and todo != open_function:
            table.add_row("", Text(f"not written yet: {todo}", style="yellow"))
        open_function = todo
        rows: list[RenderableType] = [Text(line.shown.doc or line.shown.base)]
        if word == "skip":
            rows.append(Padding(Text(line.shown.message, style="dim"), (0, 0, 0, 2)))
        table.add_row(Text(word, style=_STYLES[word]), Group(*rows))


def _add_failures(table: Table, console: Console, lines: list[Line]) -> None:
    """What fails, each message once, as far as a screen holds it; then the names of the rest.

    What passes, or waits for a function that is not written yet, is counted only.
    """
    groups: dict[tuple[object, ...], list[Line]] = {}
    for line in lines:
        if line.word == "FAIL":
            test = line.shown
            key = (test.outcome, test.message, test.file, test.line)
            groups.setdefault(key, []).append(line)
    open_ = Counter(line.shown.function or "" for line in lines if line.word == "todo")
    left = _FAILURES - len(open_)
    rest: list[Line] = []
    for number, group in enumerate(groups.values()):
        rows = Group(*_explained(group))
        width = console.width - 7
        height = len(console.render_lines(rows, console.options.update_width(width)))
        if number and (rest or height > left):
            rest += group
            continue
        left -= height
        table.add_row(Text("FAIL", style=_STYLES["FAIL"]), rows)
    if rest:
        names = Text(", ".join(line.shown.base for line in rest))
        begin = f"{_tests(len(rest))} more: "
        names.truncate(2 * (console.width - 7) - len(begin) - 20, overflow="ellipsis")
        text = Text.assemble(begin, (names.plain, "dim"))
        table.add_row(Text("FAIL", style=_STYLES["FAIL"]), text)
    for function, number in open_.items():
        waits = f"not written yet: {function} ({_tests(number)})"
        table.add_row(Text("todo", style=_STYLES["todo"]), Text(waits, style="yellow"))


def _explained(group: list[Line]) -> Iterable[RenderableType]:
    """A failed test, and what it says; `group` holds the tests that say the same."""
    line = group[0]
    test = line.shown
    pins = Text(test.doc or test.base)
    if line.num > 1:
        case = test.name.partition("[")[2].rstrip("]")
        pins.append(f"  ({line.num_bad} of {line.num} cases, the first: {case})", style="dim")
    pins.append(f"  {test.base}", style="dim")
    yield pins
    rows = [*_failure(test)]
    if len(group) > 1:
        rows.append(Text(f"and the same in {_tests(len(group) - 1)} more", style="dim"))
    yield Padding(Group(*rows), (0, 0, 0, 2))


def _failure(test: TestResult) -> Iterable[RenderableType]:
    if test.outcome == "error" and test.file and is_test_file(test.file):
        yield Text("The test could not use what your code gave it.")
    yield Text(shorten(test.message) or "The test failed and has no message.")
    yield from _where(test)
    yield from (Text(note[:_WIDE], style="dim") for note in test.notes[:_MOST_NOTES])
    if test.printed:
        yield Text("It printed:", style="dim")
        printed = [line[:_WIDE] for line in test.printed[-_MOST_PRINTED:]]
        yield Padding(Text("\n".join(printed), style="dim"), (0, 0, 0, 2))


def _where(test: TestResult) -> Iterable[RenderableType]:
    if test.file is not None and test.line is not None:
        function = f", in {test.function}" if test.function else ""
        yield Text(f"{Path(test.file).name}, line {test.line}{function}:", style="dim")
        if test.code:
            yield Padding(Text(test.code[:_WIDE]), (0, 0, 0, 2))


def show_mutation(console: Console, result: MutationResult, verbose: bool) -> None:
    """Print survivors as a diff, stale entries of the allow list, and the score."""

    def show(mutant: Mutant) -> None:
        console.print(Text(mutant.function), soft_wrap=True)
        console.print(Text(f"- {mutant.old}", style="red"), soft_wrap=True)
        console.print(Text(f"+ {mutant.new}", style="green"), soft_wrap=True)

    if verbose:
        for mutant, killer in result.killed:
            show(mutant)
            console.print(Text(f"  {mutant.kind}, line {mutant.line}: {killer} notices\n"))
    for mutant in result.survived:
        show(mutant)
        console.print(Text(f"  {mutant.kind}, solution.py:{mutant.line}: nothing notices\n"))
    for text in result.stale:
        console.print(Text(f"{ALLOW_LIST}: {text}", style="yellow"), soft_wrap=True)
    total = len(result.killed) + len(result.survived)
    chosen = f" of {result.num_planted}" if total + len(result.allowed) < result.num_planted else ""
    excused = f"; {len(result.allowed)} behave alike, by {ALLOW_LIST}" if result.allowed else ""
    console.print(
        Text(
            f"Lab {result.lab.id}: {len(result.killed)} of {total} faults noticed, "
            f"{result.score:.1f} % ({total + len(result.allowed)}{chosen} planted{excused}).",
            style="bold",
        ),
        soft_wrap=True,
    )
