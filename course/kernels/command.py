"""`course kernel FILE`: what the kernel bench says of a kernel.

Exit status 0: every judge accepts. 1: one refuses, or could not judge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from course.kernels.bench import BenchError, judge
from course.kernels.problems import PROBLEMS
from course.kernels.report import JUDGES
from course.kernels.show import show
from course.learner.labs import CourseError
from course.learner.report import make_console

app = typer.Typer(add_completion=False)


@app.command()
def kernel(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The Python file that holds the kernel.")
    ],
    problem: Annotated[
        str, typer.Option(help=f"What it solves: {', '.join(PROBLEMS)}.")
    ] = "decode",
    judges: Annotated[
        list[str] | None,
        typer.Option(
            "--judge",
            help=f"Only this one; may be repeated: {', '.join(JUDGES)}.",
            show_default=False,
        ),
    ] = None,
    vllm: Annotated[
        bool, typer.Option("--vllm/--no-vllm", help="With vLLM's own kernel beside it.")
    ] = True,
) -> None:
    """Judge a Triton kernel without a GPU: right, free of races, frugal, well compiled."""
    console = make_console()
    with make_console(stderr=True).status("the kernel runs in the interpreter, and is compiled …"):
        try:
            report = judge(file, problem, judges or JUDGES, vllm=vllm)
        except BenchError as error:
            raise CourseError(str(error)) from None
    show(console, report)
    raise typer.Exit(0 if report.ok else 1)
