"""The commands of `course`, one function each.

They find the repository from the current folder, do their work through the modules named after them,
and print. Exit status 1: graded, and not passed. A CourseError becomes a sentence and status 2.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from course.learner.desk import Desk, finished, show_next, state
from course.learner.grade import Grade, Job, cached_runs, grade, grade_many
from course.learner.hints import read_hints
from course.learner.labs import CourseError, Lab, is_test_file
from course.learner.report import show_grade
from course.learner.reset import difference, keep_untouched, reset, untouched
from course.learner.results import lines_of

app = typer.Typer(
    help="The learner's command: what to do next, grading, hints. Alone it says where you are.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
)
LabName = Annotated[
    str | None,
    typer.Argument(
        metavar="LAB",
        help="00-01, 00/1, a path, or part of the folder's name. Default: the lab you stand in, "
        "else the next one.",
        show_default=False,
    ),
]


@app.callback(invoke_without_command=True)
def where(ctx: typer.Context) -> None:
    """The learner's command: what to do next, grading, hints. Alone it says where you are."""
    if ctx.invoked_subcommand is not None:
        return
    desk = Desk()
    labs = desk.course.labs
    done = sum(desk.progress[lab].done for lab in labs)
    desk.say(f"{done} of {len(labs)} labs done.", "bold")
    for phase in desk.course.phases:
        marks = "".join("#" if desk.progress[lab].done else "." for lab in phase.labs)
        desk.say(f"  Phase {phase.number:02}  {phase.title:24} {marks or 'no labs'}")
    desk.say()
    lab = desk.next_lab()
    if lab is None:
        finished(desk)
    else:
        desk.say("Next:")
        show_next(desk, lab)
    desk.say()
    desk.say("All commands: course --help")


@app.command("list")
def list_labs() -> None:
    """Every phase and lab: tag, minutes, what it builds, done or not."""
    desk = Desk()
    coming = desk.next_lab()
    for phase in desk.course.phases:
        minutes = sum(lab.minutes for lab in phase.labs)
        if not phase.labs:
            desk.say(f"Phase {phase.number:02}  {phase.title}  (no labs)\n", "bold")
            continue
        desk.say(f"Phase {phase.number:02}  {phase.title}  ({minutes} min)", "bold")
        table = Table.grid(padding=(0, 2))
        for lab in phase.labs:
            coming_now = "next" if lab == coming and not desk.progress[lab].attempts else ""
            part = f"builds {lab.part}" if lab.part else ""
            cells = [lab.id, lab.title, lab.tag, f"{lab.minutes} min", part]
            table.add_row(*map(Text, cells), Text(state(desk, lab) or coming_now, style="green"))
        desk.console.print(Padding(table, (0, 0, 1, 2)))
    if not desk.course.phases:
        desk.say("There are no phases here yet.")


@app.command("next")
def next_lab() -> None:
    """The next lab to do: where it is and how to grade it."""
    desk = Desk()
    lab = desk.next_lab()
    if lab is None:
        finished(desk)
    else:
        keep_untouched(desk.course, lab)
        show_next(desk, lab)


def _grade(desk: Desk, lab: Lab) -> Grade:
    def comparing(number: int) -> None:
        desk.note(f"comparing with {number} known mistakes, once …")

    graded = grade(desk.course, lab, desk.progress, comparing)
    show_grade(desk.console, desk.course, graded)
    return graded


@app.command("grade")
def grade_command(
    name: LabName = None,
    all_labs: Annotated[bool, typer.Option("--all", help="Every lab, one line each.")] = False,
    phase: Annotated[
        str | None, typer.Option(metavar="NN", help="Every lab of a phase, one line each.")
    ] = None,
) -> None:
    """Run a lab's tests on your starter.py. Exit status 1 if it does not pass."""
    desk = Desk()
    if (name is not None) + all_labs + (phase is not None) > 1:
        raise CourseError("give a LAB, or --phase, or --all; only one of them")
    if not all_labs and phase is None:
        raise typer.Exit(0 if _grade(desk, desk.lab(name)).run.passed else 1)
    labs = desk.course.labs if phase is None else list(desk.course.phase(phase).labs)
    if not labs:
        raise CourseError("there are no labs to grade")
    num_passed = 0
    for graded in grade_many(desk.course, labs, desk.progress):
        run = graded.run
        num_passed += run.passed
        lines = lines_of(run)
        tests = f"{sum(line.word == 'pass' for line in lines)} of {len(lines)} tests"
        text = "passes" if run.passed else tests
        if run.problem is not None:
            text = f"{tests}: {run.problem}"
        elif run.bad:
            first = run.bad[0]
            text = f"{tests}; {first.base}: {' '.join(first.message.split()) or first.outcome}"
        style = "green" if run.passed else ""
        desk.console.print(
            Text(f"{graded.lab.id}  {text}", style=style), no_wrap=True, overflow="ellipsis"
        )
    desk.say(f"{num_passed} of {len(labs)} labs pass.", "bold")
    raise typer.Exit(0 if num_passed == len(labs) else 1)


@app.command("hint")
def hint(
    name: LabName = None,
    again: Annotated[
        bool, typer.Option("--again", help="Those you have seen, no new one.")
    ] = False,
) -> None:
    """One more hint: each call goes a step further, from a nudge to nearly the answer."""
    desk = Desk()
    lab = desk.lab(name)
    hints = read_hints(lab)
    if not hints:
        raise CourseError(f"{desk.course.show(lab.folder)} has no hints")
    seen = min(desk.progress[lab].hints, len(hints))
    if again:
        if not seen:
            raise CourseError(f"no hint of {lab.id} was shown yet: course hint {lab.id}")
        shown = hints[:seen]
    else:
        shown = [hints[min(seen, len(hints) - 1)]]
        with desk.progress.update(lab) as entry:
            entry.hints = min(seen + 1, len(hints))
    for one in shown:
        desk.say(f"Lab {lab.id}, hint {one.number} of {len(hints)}: {one.title}", "bold")
        desk.console.print(Padding(Markdown(one.body), (0, 0, 1, 2)))
    if not again and seen == len(hints):
        desk.say("You have seen all hints; this is the last one again.")
    if shown[-1].number == len(hints):
        desk.say(f"To look at the solution before you have your own: course diff {lab.id} --peek")


@app.command("watch")
def watch(name: LabName = None) -> None:
    """Grade each time you save starter.py. Ctrl-C ends."""
    desk = Desk()
    lab = desk.lab(name)
    try:
        from watchfiles import watch as changes
    except ModuleNotFoundError:
        raise _extra_missing("watch", "watchfiles", "course") from None

    def wanted(change: object, path: str) -> bool:
        return Path(path).name == "starter.py" or is_test_file(path)

    def once() -> None:
        if desk.console.is_terminal:
            desk.console.clear()
        try:
            _grade(desk, lab)
        except CourseError as error:  # the file may be gone for the moment of a save
            desk.note(str(error))
        desk.say(f"\nWaiting for {lab.starter.name} to be saved. Ctrl-C ends.", "dim")

    once()
    for _ in changes(lab.folder, watch_filter=wanted, recursive=False, debounce=200, step=50):
        once()


@app.command("diff")
def diff(
    name: LabName = None,
    peek: Annotated[bool, typer.Option("--peek", help="Even if the lab does not pass.")] = False,
) -> None:
    """Your starter.py against the solution, once it passes."""
    desk = Desk()
    lab = desk.lab(name)
    if not peek:
        [run] = cached_runs(desk.course.root, [(lab, Job(lab.folder, lab.starter))])
        if not run.passed:
            raise CourseError(
                f"{lab.id} does not pass yet, and the diff would give it away. "
                f"Grade it (course grade {lab.id}), or add --peek."
            )
    text = difference(desk.course, lab)
    if not text:
        desk.say("No difference: your starter.py is the solution, letter by letter.")
    elif desk.console.is_terminal:
        from rich.syntax import Syntax

        desk.console.print(Syntax(text, "diff", background_color="default", word_wrap=True))
    else:
        print(text, end="")


@app.command("reset")
def reset_command(
    name: LabName = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Put the untouched starter.py back; yours is kept as a backup."""
    desk = Desk()
    lab = desk.lab(name)
    source, text = untouched(desk.course, lab)
    path = desk.course.show(lab.starter)
    if lab.starter.is_file() and lab.starter.read_text(encoding="utf-8", errors="replace") == text:
        desk.say(f"{path} is untouched; nothing to do.")
        return
    if not yes:
        desk.say(f"{path} will be replaced by the untouched starter, from {source}.")
        typer.confirm("Go on? Your version is kept as a backup.", abort=True)
    backup = reset(desk.course, lab, text)
    desk.say(f"{path} is untouched again.")
    if backup is not None:
        desk.say(f"Yours: {desk.course.show(backup)}")


@app.command("doctor")
def doctor(
    full: Annotated[bool, typer.Option("--full", help="Also ask torch for the GPU.")] = False,
) -> None:
    """What this environment has, and the command that brings what is missing."""
    from course.learner.doctor import OK, examine

    desk = Desk()
    checks = examine(desk.course.root, full)
    styles = {OK: "green", "missing": "bold red", "wrong": "bold red", "not here": "yellow"}
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            desk.say(group, "bold")
        line = Text.assemble(
            "  ", (f"{check.state:9}", styles[check.state]), f"{check.name:17} {check.detail}"
        )
        desk.console.print(line, soft_wrap=True)
        commands = {"uv": check.uv, "pip": check.pip}
        if check.uv and check.uv == check.pip:
            commands = {"run": check.uv}
        for tool, command in commands.items():
            if command:
                desk.say(f"{'':29}{tool + ':':4} {command}", "dim")
    needed = [check.name for check in checks if check.needed]
    desk.say()
    if needed:
        desk.say(f"To be mended: {', '.join(needed)}.", "bold red")
        raise typer.Exit(1)
    desk.say("Everything that is needed is here. 'not here' is wanted by some labs only.")


@app.command("assemble")
def assemble() -> None:
    """Your engine: which parts are yours, and whether it gives the reference's tokens."""
    from course.learner.assemble import build, find_parts, same_tokens

    desk = Desk()
    parts = find_parts(desk.course)
    table = Table.grid(padding=(0, 2))
    for part in parts:
        whose = Text("yours", style="green") if part.mine else Text("reference")
        table.add_row(Text(part.name), whose, Text(part.why))
    desk.console.print(table)
    desk.say()
    mine = [part.name for part in parts if part.mine]
    if not mine:
        desk.say(
            "The engine is all reference so far. A lab that 'builds' a part (course list) gives one."
        )
        return
    compared = same_tokens(build(parts))
    for name, got, wanted in compared:
        if got != wanted:
            first = next(
                (i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b),
                min(len(got), len(wanted)),
            )
            desk.say(f"{name}: token {first} differs from the reference's.")
    num_same = sum(got == wanted for _, got, wanted in compared)
    num_tokens = sum(len(wanted) for _, _, wanted in compared)
    desk.say(
        f"On your {', '.join(mine)} the engine gave the reference's tokens for {num_same} of "
        f"{len(compared)} requests ({num_tokens} tokens)."
    )
    if num_same != len(compared):
        raise typer.Exit(1)
    desk.say('Talk to it: mini-vllm generate --mine "The scheduler"')


@app.command("check")
def check(name: LabName = None) -> None:
    """For authors: does a lab keep the lab contract? Without LAB: do all of them?"""
    from course.authors.contract import behaviour, pages_and_code

    desk = Desk()
    labs = desk.course.labs if name is None else [desk.course.resolve(name)]
    ran = behaviour(desk.course, labs)
    problems = list(desk.course.problems) if name is None else []
    for lab in labs:
        problems += pages_and_code(desk.course, lab) + ran[lab.id]
    for problem in problems:
        desk.say(problem)
    desk.say(f"{len(labs)} labs checked, {len(problems)} rules broken.", "bold")
    raise typer.Exit(1 if problems else 0)


@app.command("mutate")
def mutate_command(
    name: LabName = None,
    minimum: Annotated[
        float, typer.Option("--min", metavar="PERCENT", help="Exit status 1 below this score.")
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(help="Chooses the faults, if there are more than --most.")
    ] = 0,
    most: Annotated[int, typer.Option(metavar="N", help="Plant at most so many faults.")] = 200,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every fault.")] = False,
) -> None:
    """For authors: plant small faults in solution.py, and see how many the tests notice."""
    from course.authors.mutate import mutate
    from course.learner.report import show_mutation

    desk = Desk()
    with desk.warn.status("planting faults …") as status:
        result = mutate(
            desk.course, desk.lab(name), seed, most,
            lambda done, total: status.update(f"{done} of {total} faults tried"),
        )  # fmt: skip
    show_mutation(desk.console, result, verbose)
    if result.score < minimum:
        desk.say(f"That is below {minimum:g} %.", "bold red")
        raise typer.Exit(1)


# -- groups that live in modules of their own, loaded when they are called ------------------------


def _extra_missing(command: str, package: str | None, extra: str) -> CourseError:
    return CourseError(
        f"'course {command}' needs {package}: uv sync --inexact --extra {extra}, or "
        f'pip install -e ".[{extra}]"'
    )


def _group(command: str, module: str, extra: str) -> Callable[[typer.Context], None]:
    def call(ctx: typer.Context) -> None:
        try:
            loaded: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] in ("course", "mini_vllm"):
                raise
            raise _extra_missing(command, error.name, extra) from None
        loaded.app(args=ctx.args, prog_name=f"course {command}")

    return call


for _command, _module, _extra, _help in (
    ("cite", "course.cite.command", "course", "Citations of vLLM's source: check, fix, show."),
    ("correspond", "course.cite.correspond", "course", "mini_vllm's lines beside vLLM's."),
    ("compare", "course.cite.compare_command", "course", "mini_vllm beside your own vLLM: a page."),
    ("docs", "course.docs.command", "course", "The pages: links, code blocks, doctests."),
    ("site", "course.site.command", "site", "The course as a website: build, serve."),
):
    app.command(
        _command,
        help=_help,
        context_settings={
            "allow_extra_args": True,
            "ignore_unknown_options": True,
            "help_option_names": [],
        },
    )(_group(_command, _module, _extra))
