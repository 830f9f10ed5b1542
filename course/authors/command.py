"""`course author …`: what keeps the course true. Learners need none of it, so `course --help` shows one line.

The commands stand under their short names too (`course cite show PATH:LINE`), hidden: pages and error
messages name them so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from course.learner.desk import Desk
from course.learner.labs import CourseError
from course.learner.mistakes import find_mistake
from mini_vllm.utils.extras import how_to_get

app = typer.Typer(help="For authors: the rules that the course is held to.", no_args_is_help=True)
LabName = Annotated[
    str | None,
    typer.Argument(metavar="LAB", help="As in course grade.", show_default=False),
]


def contract(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LAB]...", help="As in course grade. Default: all.", show_default=False
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="All tests on every mistake, not on a tenth.")
    ] = False,
    write: Annotated[
        bool,
        typer.Option("--write", help="Take the fingerprints that are stale; with --full, all."),
    ] = False,
) -> None:
    """Do labs keep the lab contract? Solution, starter, mistakes and their fingerprints."""
    from course.authors.contract import pages_and_code
    from course.authors.proof import behaviour, draw_of, take_fingerprints

    desk = Desk()
    labs = [desk.course.resolve(name) for name in names or []] or desk.course.labs
    problems = list(desk.course.problems) if not names else []
    if write:
        for lab in labs:
            with desk.warn.status(f"{lab.id} …") as status:

                def told(done: int, number: int, name: str = lab.id) -> None:
                    status.update(f"{name}: {done} of {number} mistakes run")

                problems += take_fingerprints(desk.course, lab, full, told)
    else:
        desk.say(
            "All tests on every mistake."
            if full
            else f"The tenth drawn by {draw_of(desk.course.root)}."
        )
        ran = behaviour(desk.course, labs, full)
        for lab in labs:
            problems += pages_and_code(desk.course, lab) + ran[lab.id]
    for problem in problems:
        desk.say(problem)
    desk.say(f"{len(labs)} labs, {len(problems)} rules broken.", "bold")
    raise typer.Exit(1 if problems else 0)


def show_mistake(
    name: Annotated[str, typer.Argument(metavar="LAB", help="As in course grade.")],
    key: Annotated[str, typer.Argument(metavar="NAME", help="What mistakes.toml calls it.")],
    out: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Write it there.")] = None,
) -> None:
    """The solution with one of the lab's known mistakes in it, to be read or run."""
    desk = Desk()
    text = find_mistake(desk.course.resolve(name), key).text
    if out is None:
        print(text, end="")
    else:
        out.write_text(text, encoding="utf-8")


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
    """Plant small faults in solution.py, and see how many the tests notice."""
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


def weigh_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PHASE]...",
            help="Numbers or parts of folders' names. Default: all.",
            show_default=False,
        ),
    ] = None,
    check_only: Annotated[
        bool, typer.Option("--check", help="Only what is too heavy; exit status 1 if there is any.")
    ] = False,
) -> None:
    """What phases weigh: words, hours, labs, lines to write, known mistakes, against their limits."""
    from course.authors.weigh import breaches, weigh
    from course.authors.weigh_table import show_weights

    desk = Desk()
    course = desk.course
    phases = [course.phase(name) for name in names] if names else course.phases
    weights = [weigh(course, phase) for phase in phases]
    if not check_only:
        show_weights(desk.console, weights)
        return
    found = [text for weight in weights for text in breaches(course, weight)]
    for text in found:
        desk.say(text)
    desk.say(f"{len(weights)} phases weighed, {len(found)} limits exceeded.", "bold")
    raise typer.Exit(1 if found else 0)


def sync(
    tree: Annotated[
        Path | None,
        typer.Option("--tree", help="A vLLM tree. Default: upstream/vllm or the installed one."),
    ] = None,
) -> None:
    """Write all that is generated again: links, code blocks, tables, the index of facts, CONFORMANCE.md."""
    from course.cite.command import fix as fix_citations
    from course.conformance.page import PAGE, make_page
    from course.conformance.table import read_expected
    from course.docs.command import fix as fix_pages
    from course.drift import page as releases

    PAGE.write_text(make_page(read_expected()), encoding="utf-8")
    # The tables need the index, and the links stand in the tables. What is wrong then, the last two say.
    with suppress(typer.Exit):
        fix_citations(tree)
    statuses = []
    for write in (fix_pages, partial(fix_citations, tree)):
        try:
            write()
        except typer.Exit as stop:
            statuses.append(stop.exit_code)
    releases.main([])
    raise typer.Exit(max(statuses, default=0))


# -- groups that live in modules of their own, loaded when they are called ------------------------


def extra_missing(command: str, package: str | None, extra: str) -> CourseError:
    return CourseError(f"'course {command}' needs {package}: {how_to_get(extra)}")


def mount(
    to: typer.Typer, name: str, module: str, extra: str, text: str, hidden: bool = False
) -> None:
    """Make the Typer app of `module` a command of `to`; `extra` is what brings its packages."""
    to.command(
        name,
        help=text,
        hidden=hidden,
        context_settings={
            "allow_extra_args": True,
            "ignore_unknown_options": True,
            "help_option_names": [],
        },
    )(_group(name, module, extra))


def _group(command: str, module: str, extra: str) -> Callable[[typer.Context], None]:
    def call(ctx: typer.Context) -> None:
        try:
            loaded: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] in ("course", "mini_vllm"):
                raise
            raise extra_missing(command, error.name, extra) from None
        loaded.app(args=ctx.args, prog_name=ctx.command_path)

    return call


GROUPS = (
    ("cite", "course.cite.command", "course", "Citations of vLLM's source: check, fix, show."),
    ("correspond", "course.cite.correspond", "course", "mini_vllm's lines beside vLLM's."),
    ("docs", "course.docs.command", "course", "The pages: links, code blocks, doctests."),
    ("site", "course.site.command", "site", "The course as a website: build, serve."),
)


def add_commands(to: typer.Typer, hidden: bool = False) -> None:
    """The authors' commands, added to `to`."""
    to.command("contract", hidden=hidden)(contract)
    to.command("mistake", hidden=hidden)(show_mistake)
    to.command("mutate", hidden=hidden)(mutate_command)
    to.command("weigh", hidden=hidden)(weigh_command)
    to.command("sync", hidden=hidden)(sync)
    for name, module, extra, text in GROUPS:
        mount(to, name, module, extra, text, hidden)


add_commands(app)
