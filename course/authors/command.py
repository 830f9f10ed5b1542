"""`course author …`: what keeps the course true. Learners need none of it, so `course --help` shows one line.

The commands stand under their short names too (`course cite show PATH:LINE`), hidden: pages and error
messages name them so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Annotated, Any

import typer

from course.learner.desk import Desk
from course.learner.labs import CourseError

app = typer.Typer(help="For authors: the rules that the course is held to.", no_args_is_help=True)
LabName = Annotated[
    str | None,
    typer.Argument(metavar="LAB", help="As in course grade.", show_default=False),
]


def check(name: LabName = None) -> None:
    """Does a lab keep the lab contract? Without LAB: do all of them?"""
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


# -- groups that live in modules of their own, loaded when they are called ------------------------


def extra_missing(command: str, package: str | None, extra: str) -> CourseError:
    return CourseError(
        f"'course {command}' needs {package}: uv sync --inexact --extra {extra}, or "
        f'pip install -e ".[{extra}]"'
    )


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
    to.command("check", hidden=hidden)(check)
    to.command("mutate", hidden=hidden)(mutate_command)
    for name, module, extra, text in GROUPS:
        mount(to, name, module, extra, text, hidden)


add_commands(app)
