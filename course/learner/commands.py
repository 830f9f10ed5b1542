"""The commands of `course`, one function each.

They find the repository from the current folder, do their work through the modules named after them,
and print. Exit status 1: graded, and not passed. A CourseError becomes a sentence and status 2.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from course.authors.command import add_commands, mount
from course.authors.command import app as author_app
from course.learner.desk import Desk, finished, show_hint, show_next, show_tracks, show_where
from course.learner.diff import difference
from course.learner.grade import Grade, Job, cached_runs, grade_many
from course.learner.labs import CourseError
from course.learner.listing import choose, show_list
from course.learner.live import grade_aloud
from course.learner.report import show_line
from course.learner.reset import keep_untouched, reset, untouched
from course.learner.tracks import choose_track
from mini_vllm.version import __version__

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


def show_version(wanted: bool) -> None:
    """What `--version` prints: the course is of the engine's version."""
    if wanted:
        typer.echo(f"course {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def where(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="The version.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """The learner's command: what to do next, grading, hints. Alone it says where you are."""
    if ctx.invoked_subcommand is not None:
        return
    desk = Desk()
    show_where(desk)
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
def list_labs(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...",
            help="Only labs with these words in the number, title, folder, tag or part.",
            show_default=False,
        ),
    ] = None,
    phase: Annotated[str | None, typer.Option(metavar="NN", help="Only this phase.")] = None,
    tag: Annotated[
        str | None, typer.Option(help="Only labs with this tag, or part of it: gpu.")
    ] = None,
    undone: Annotated[
        bool, typer.Option("--undone", help="Only what is not done, or fails now.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="All labs, also those that your track leaves out.")
    ] = False,
) -> None:
    """Every phase and lab: tag, minutes, what it builds, done or not. Or those you ask for."""
    desk = Desk()
    if everything or phase is not None:
        desk.track = None
    show_list(desk, choose(desk, words or [], phase, tag, undone))


@app.command("track")
def track(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A track, or whole: every phase.", show_default=False),
    ] = None,
) -> None:
    """The tracks: ways through part of the course. With a NAME you are on that track from now on."""
    desk = Desk()
    if name is None:
        show_tracks(desk)
        return
    desk.track = choose_track(desk.course, desk.tracks, name)
    where = "the whole course" if desk.track is None else f"the track {desk.track.title}"
    desk.say(f"You are on {where} now.", "bold")
    if desk.track is not None:
        desk.say(f"It begins here: {desk.course.show(desk.track.page)}")
    desk.say("What comes next: course")


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
        raise typer.Exit(0 if grade_aloud(desk, desk.lab(name)).run.passed else 1)
    labs = desk.course.labs if phase is None else list(desk.course.phase(phase).labs)
    if not labs:
        raise CourseError("there are no labs to grade")
    num_passed = 0

    def show(graded: Grade) -> None:
        nonlocal num_passed
        num_passed += graded.run.passed
        show_line(desk.console, graded)

    grade_many(desk.course, labs, desk.progress, show)
    desk.say(f"{num_passed} of {len(labs)} labs pass.", "bold")
    raise typer.Exit(0 if num_passed == len(labs) else 1)


@app.command("hint")
def hint(
    name: LabName = None,
    again: Annotated[
        bool, typer.Option("--again", help="Those you have seen, no new one.")
    ] = False,
) -> None:
    """One more hint: for the mistake or the function that the last grade showed first, else the next one."""
    desk = Desk()
    show_hint(desk, desk.lab(name), again)


@app.command("watch")
def watch(name: LabName = None) -> None:
    """Grade each time you save a starter.py, and go on when a lab passes.

    What failed is run first, and the rest once that passes. Keys: n next lab, h hint, l list, x put the
    untouched starter.py back, r run all tests, q quit.
    """
    from course.learner.watch import Watch

    desk = Desk()
    Watch(desk, desk.lab(name)).run()


@app.command("diff")
def diff(
    name: LabName = None,
    peek: Annotated[bool, typer.Option("--peek", help="Even if the lab does not pass.")] = False,
    docstrings: Annotated[bool, typer.Option("--docstrings", help="With the docstrings.")] = False,
) -> None:
    """Your starter.py against the solution, once it passes. Docstrings are left out."""
    desk = Desk()
    lab = desk.lab(name)
    if not peek:
        [run] = cached_runs(desk.course.root, [(lab, Job(lab.folder, lab.starter))])
        if not run.passed:
            raise CourseError(
                f"{lab.id} does not pass yet, and the diff would give it away. "
                f"Grade it (course grade {lab.id}), or add --peek."
            )
    text = difference(desk.course, lab, docstrings)
    if not text and not docstrings and difference(desk.course, lab, docstrings=True):
        desk.say(f"No difference but docstrings: course diff {lab.id} --docstrings")
    elif not text:
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
    from course.learner.assemble import build, find_parts, not_begun, same_tokens

    desk = Desk()
    parts = find_parts(desk.course)
    table = Table.grid(padding=(0, 2))
    for part in parts:
        if part.begun:
            whose = Text("yours", style="green") if part.mine else Text("reference")
            table.add_row(Text(part.name), whose, Text(part.why))
    if table.row_count:
        desk.console.print(table)
    for line in not_begun(parts):
        desk.say(line[0].upper() + line[1:] + ".")
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


# -- what lives in modules of its own -------------------------------------------------------------

mount(
    app,
    "compare",
    "course.cite.compare_command",
    "course",
    "mini_vllm beside your own vLLM: a page.",
)
mount(app, "drift", "course.drift.command", "course", "What a release of vLLM decides otherwise.")
mount(app, "kernel", "course.kernels.command", "course", "Judge a Triton kernel without a GPU.")
app.add_typer(author_app, name="author")
add_commands(app, hidden=True)  # pages and messages say `course cite show PATH:LINE`
