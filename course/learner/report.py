"""How grades are shown: what the failures look like, then each with what it teaches, then what to do next."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from course.authors.mutants import Mutant
from course.authors.mutate import MutationResult
from course.learner.causes import PREDICTIONS, Causes, read_causes
from course.learner.grade import Grade
from course.learner.labs import MUTANTS, Course, Lab, is_test_file
from course.learner.results import Line, TestResult, lines_of, unloadable
from course.learner.shorten import shorten
from course.learner.sides import find_sides
from course.learner.stubs import functions, unwritten

MOST_LINES = 40  # of a lab that does not pass, on a window 100 wide: what a screen holds
_FAILURES = 22  # lines of them for failures
_MOST_NOTES = 5
_MOST_HELD = 5  # tests that wait for a function, shown
_MOST_PRINTED = 4
_WIDE = 160  # characters of a line that the learner's code printed
STYLES = {"pass": "green", "FAIL": "bold red", "todo": "yellow", "skip": "dim", "----": "dim"}


def make_console(stderr: bool = False) -> Console:
    """A console; lines are 100 wide where nothing says how wide the window is."""
    console = Console(highlight=False, stderr=stderr)
    if console.is_terminal:
        return console
    stream = _Tidy(sys.stderr if stderr else sys.stdout)
    return Console(highlight=False, file=cast("IO[str]", stream), width=100)


def linked(text: str, path: Path) -> Text:
    """`text`, which opens `path` at a click on a terminal that knows how."""
    return Text.assemble((text, Style(link=path.as_uri())))


class _Tidy(io.TextIOBase):
    """Passes text on without the blanks that rich fills its lines up with."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(re.sub(r"[ \t]+(?=\n)", "", text))
        return len(text)

    def flush(self) -> None:
        self.stream.flush()


def show_grade(console: Console, course: Course, graded: Grade) -> None:
    """Print a grade: what the failures look like, the tests, and what to do next."""
    show_head(console, course, graded.lab)
    show_run(console, graded)
    show_advice(console, course, graded)


def show_head(console: Console, course: Course, lab: Lab) -> None:
    console.print(Text.assemble(("Lab " + lab.id, "bold"), f"  {lab.title}"))
    starter = linked(course.show(lab.starter), lab.starter)
    starter.stylize("dim")
    console.print(starter, soft_wrap=True)
    console.print()


def show_run(console: Console, graded: Grade) -> None:
    """Print the known mistakes that it looks like, how to mend those met before, and what the tests say."""
    lab, run, likeness = graded.lab, graded.run, graded.likeness
    if likeness is not None:
        hints = [Text(one.hint) for one in likeness.mistakes if one.key in graded.met]
        console.print(Text(likeness.sentence, style="bold"))
        console.print(Padding(Group(*hints), (0, 0, 1, 2)))
    broken = unloadable(run)
    if broken is not None:
        console.print(Text(f"{lab.starter.name} cannot be loaded, so no test could run."))
        console.print(Padding(Group(*_where(broken), Text(shorten(broken.message))), (0, 0, 1, 2)))
    lines = lines_of(run)
    table = Table.grid(padding=(0, 2))
    table.add_column(width=4)
    table.add_column(overflow="fold")
    open_ = [] if broken else open_functions(lab, lines)
    if broken is None and any(line.word == "FAIL" for line in lines):
        _add_failures(table, console, graded, lines, open_)
    else:
        _add_all(table, lab, lines, broken is not None, open_)
    console.print(Padding(table, (0, 0, 0, 1)))
    console.print()
    if run.problem is not None:
        console.print(Text(run.problem, style="bold"))
    count = {word: sum(line.word == word for line in lines) for word in STYLES}
    if run.passed:
        skipped = f" {count['skip']} could not run here." if count["skip"] else ""
        console.print(
            Text(f"Lab {lab.id} passes: {_tests(count['pass'])}.{skipped}", style="bold green")
        )
    elif broken is None and lines:
        parts = [f"{count['pass']} of {_tests(len(lines))} pass"]
        parts += [f"{count['FAIL']} fail"] if count["FAIL"] else []
        parts += [f"{count['todo']} wait for what is not written yet"] if count["todo"] else []
        parts += [f"{count['skip']} skipped"] if count["skip"] else []
        console.print(Text(", ".join(parts) + ".", style="bold"))


def show_advice(console: Console, course: Course, graded: Grade) -> None:
    """Print what to do next."""
    lab, named = graded.lab, graded.likeness.mistakes if graded.likeness is not None else ()
    if graded.run.passed:
        console.print(
            Text(f"See how the course writes it: course diff {lab.id}. Go on: course next")
        )
        return
    more = f"Stuck? course hint {lab.id}."
    if any(mistake.key not in graded.met for mistake in named):
        more = f"How to mend this: course hint {lab.id}, or grade it again."
    elif not named and len([line for line in lines_of(graded.run) if line.word == "FAIL"]) > 1:
        more = f"Begin with the first; the others may go with it. {more}"
    plain = f"pytest {course.show(lab.folder)}"
    console.print(Text(f"{more} Every detail: {of_starter(plain)}"), soft_wrap=True)


def of_starter(command: str) -> str:
    """`command`, which runs pytest, with LAB_IMPL=starter: on Windows as PowerShell takes it."""
    return (
        f'$env:LAB_IMPL="starter"; {command}' if os.name == "nt" else f"LAB_IMPL=starter {command}"
    )


def show_line(console: Console, graded: Grade) -> None:
    """Print a grade as one line."""
    run = graded.run
    lines = lines_of(run)
    tests = f"{sum(line.word == 'pass' for line in lines)} of {len(lines)} tests"
    text = "passes" if run.passed else tests
    if run.problem is not None:
        text = f"{tests}: {run.problem}"
    elif run.bad:
        first = run.bad[0]
        text = f"{tests}; {first.base}: {' '.join(first.message.split()) or first.outcome}"
    line = Text(f"{graded.lab.id}  {text}", style="green" if run.passed else "")
    console.print(line, no_wrap=True, overflow="ellipsis")


def open_functions(lab: Lab, lines: Sequence[Line]) -> list[tuple[str, list[Line]]]:
    """What is not written yet and the tests that wait for it, in the order of starter.py.

    First comes a function that tests wait for; some that follow may have none as yet, because the tests that
    need them stop before.
    """
    waiting: dict[str, list[Line]] = {}
    for line in lines:
        if line.word == "todo":
            waiting.setdefault(line.shown.function or "", []).append(line)
    source = lab.starter.read_text(encoding="utf-8", errors="replace")
    names = list(waiting)
    with contextlib.suppress(SyntaxError):
        open_ = unwritten(source)
        order = [name for name in functions(ast.parse(source)) if name in open_ or name in waiting]
        names = [*order, *(name for name in waiting if name not in order)]
    if not waiting:
        return []
    first = next(name for name in names if name in waiting)
    return [(name, waiting.get(name, [])) for name in sorted(names, key=lambda name: name != first)]


def _tests(number: int) -> str:
    return f"{number} test" if number == 1 else f"{number} tests"


def _add_all(
    table: Table, lab: Lab, lines: list[Line], broken: bool, open_: list[tuple[str, list[Line]]]
) -> None:
    """One line a test, as nothing failed, or nothing could run; of what is open, the first function."""
    for line in lines:
        if line.word == "todo" and not broken:
            continue
        word = "----" if broken else line.word
        rows: list[RenderableType] = [Text(line.shown.doc or line.shown.base)]
        if word == "skip":
            rows.append(Padding(Text(line.shown.message, style="dim"), (0, 0, 0, 2)))
        table.add_row(Text(word, style=STYLES[word]), Group(*rows))
    if not open_:
        return
    (function, waiting), *others = open_
    place = waiting[0].shown.line
    at = f" ({lab.starter.name}, line {place})" if place else ""
    rows = [Text.assemble(("not written yet: ", "yellow"), (function, "bold yellow"), at)]
    held = [Text(line.shown.doc or line.shown.base) for line in waiting[:_MOST_HELD]]
    if len(waiting) > _MOST_HELD:
        held.append(Text(f"and {len(waiting) - _MOST_HELD} more", style="dim"))
    rows += [Text("It is the first to write. These wait for it:", style="dim")]
    rows += [Padding(Group(*held), (0, 0, 0, 2))]
    if others:
        rows.append(Text(f"After it: {', '.join(name for name, _ in others)}", style="dim"))
    table.add_row(Text("todo", style=STYLES["todo"]), Group(*rows))


def _add_failures(
    table: Table,
    console: Console,
    graded: Grade,
    lines: list[Line],
    open_: list[tuple[str, list[Line]]],
) -> None:
    """What fails, by cause, each message once, as far as a screen holds it; then the names of the rest.

    What passes, or waits for a function that is not written yet, is counted only.
    """
    causes = read_causes(graded.lab)
    left = _FAILURES - bool(open_)
    rest: list[Line] = []
    shown = False
    for title, failed in _by_cause(graded, lines, causes):
        rows: list[RenderableType] = [Text(title, style="italic")] if title else []
        left -= len(rows)
        for group in _same_message(failed):
            what = Group(*_explained(group, causes))
            width = console.width - 7
            height = len(console.render_lines(what, console.options.update_width(width)))
            if shown and (rest or height > left):
                rest += group
                continue
            left -= height
            shown = True
            for row in rows:
                table.add_row("", row)
            rows = []
            table.add_row(Text("FAIL", style=STYLES["FAIL"]), what)
    if rest:
        names = Text(", ".join(line.shown.base for line in rest))
        begin = f"{_tests(len(rest))} more: "
        names.truncate(2 * (console.width - 7) - len(begin) - 20, overflow="ellipsis")
        text = Text.assemble(begin, (names.plain, "dim"))
        table.add_row(Text("FAIL", style=STYLES["FAIL"]), text)
    if open_:
        each = [f"{name} ({_tests(len(held))})" for name, held in open_ if held]
        waits = f"not written yet: {', '.join(each)}"
        table.add_row(Text("todo", style=STYLES["todo"]), Text(waits, style="yellow"))


def _by_cause(graded: Grade, lines: list[Line], causes: Causes) -> Iterable[tuple[str, list[Line]]]:
    """What fails, in the order of `course.learner.causes`; what a named mistake explains stands together.

    Before it stand predictions, which it says nothing of, and behind it what else is wrong.
    """
    failed = [line for line in lines if line.word == "FAIL"]
    failed.sort(key=lambda line: causes.place(line.shown))
    if graded.likeness is None:
        return [("", failed)]
    explained = graded.likeness.explained
    parts: dict[str, list[Line]] = {
        "First, what you predicted:": [],
        "Failures that this explains:": [],
        "Failures that it does not explain:": [],
    }
    first, this, other = parts.values()
    for line in failed:
        if line.shown.name in explained:
            this.append(line)
        else:
            (first if causes.about(line.shown) == PREDICTIONS else other).append(line)
    there = [(title, some) for title, some in parts.items() if some]
    return there if len(there) > 1 else [("", failed)]


def _same_message(failed: list[Line]) -> list[list[Line]]:
    groups: dict[tuple[object, ...], list[Line]] = {}
    for line in failed:
        test = line.shown
        groups.setdefault((test.outcome, test.message, test.file, test.line), []).append(line)
    return [*groups.values()]


def _explained(group: list[Line], causes: Causes) -> Iterable[RenderableType]:
    """A failed test, and what it says; `group` holds the tests that say the same."""
    line = group[0]
    test = line.shown
    pins = Text(test.doc or test.base)
    if line.num > 1:
        case = test.name.partition("[")[2].removesuffix("]")
        pins.append(f"  ({line.num_bad} of {line.num} cases, the first: {case})", style="dim")
    about = causes.about(test)
    pins.append(f"  {about}: {test.base}" if about else f"  {test.base}", style="dim")
    yield pins
    rows = [*_failure(test, causes)]
    if len(group) > 1:
        more = len(group) - 1
        said = "1 more test fails" if more == 1 else f"{more} more tests fail"
        rows.append(Text(f"{said} the same way", style="dim"))
    yield Padding(Group(*rows), (0, 0, 0, 2))


def _failure(test: TestResult, causes: Causes) -> Iterable[RenderableType]:
    if test.outcome == "error" and test.file and is_test_file(test.file):
        yield Text("The test could not use what your code gave it.")
    said = shorten(test.message, test.tolerance, find_sides(test, causes.source_of(test)))
    yield Text(said or "The test failed and has no message.")
    yield from _where(test)
    yield from (Text(note[:_WIDE], style="dim") for note in test.notes[:_MOST_NOTES])
    if test.printed:
        yield Text("It printed:", style="dim")
        printed = [line[:_WIDE] for line in test.printed[-_MOST_PRINTED:]]
        yield Padding(Text("\n".join(printed), style="dim"), (0, 0, 0, 2))


def _where(test: TestResult) -> Iterable[RenderableType]:
    if test.file is not None and test.line is not None:
        function = f", in {test.function}" if test.function else ""
        place = linked(f"{Path(test.file).name}, line {test.line}", Path(test.file))
        yield Text.assemble(place, f"{function}:", style="dim")
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
        console.print(Text(f"{MUTANTS}: {text}", style="yellow"), soft_wrap=True)
    total = len(result.killed) + len(result.survived)
    chosen = f" of {result.num_planted}" if total + len(result.allowed) < result.num_planted else ""
    excused = f"; {len(result.allowed)} behave alike, by {MUTANTS}" if result.allowed else ""
    console.print(
        Text(
            f"Lab {result.lab.id}: {len(result.killed)} of {total} faults noticed, "
            f"{result.score:.1f} % ({total + len(result.allowed)}{chosen} planted{excused}).",
            style="bold",
        ),
        soft_wrap=True,
    )
