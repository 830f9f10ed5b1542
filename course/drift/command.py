"""`course drift`: what a release of vLLM decides otherwise than the pin."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from course.drift.compare import (
    Comparison,
    Results,
    compare,
    explain_first,
    is_digest,
    recorded_releases,
)  # fmt: skip
from course.drift.record import fetch, record
from course.drift.signatures import changed_parameters, pin_tree
from course.learner.labs import CourseError
from mini_vllm.core.sched.releases import PIN, RELEASES, rules_of

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Release = Annotated[
    str | None,
    typer.Argument(metavar="RELEASE", help="As in 0.33.0. Default: list the recorded ones."),
]


@app.command()
def drift(
    release: Release = None,
    record_it: Annotated[
        bool,
        typer.Option(
            "--record",
            help="Fetch this release and record it, in SETUP.md's second environment. Takes some minutes. "
            "Warns of each parameter that it gave to what the recorder calls: its default may mean "
            "something else than the pin did.",
        ),
    ] = False,
    show: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="GROUP NAME",
            help="The first step at which this workload differs, vLLM's beside the engine's. Needs the "
            "second environment, as --record.",
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Show this rule of docs/RELEASES.md: a small workload, decided without it and with it.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.html",
            help="With --rule: both runs side by side, as a page to step through.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="PATH:CLASS",
            help="Compare this scheduler with the release's, instead of the engine's.",
        ),
    ] = None,
) -> None:
    """What a release of vLLM decides otherwise than the pin, on several hundred workloads, by which rules.

    Exit status 1 where something differs that no rule explains.
    """
    console = Console(highlight=False)
    if rule is not None:
        _show_rule(console, rule, trace)
        return
    if trace is not None:
        raise CourseError("--trace goes with --rule NAME")
    if release is None:
        newest = recorded_releases()[-1]
        console.print(f"Recorded: {', '.join(recorded_releases())}. For one: course drift {newest}")
        return
    if record_it:
        tree = fetch(release)
        for line in changed_parameters(pin_tree(), tree):
            console.print(f"warning: {line}", markup=False, soft_wrap=True)
        results = Results(release, str(datetime.date.today()), tuple(record(tree)))
        console.print(f"wrote {results.save().relative_to(Path.cwd())}")
    if show is not None:
        console.print(explain_first(release, *show), markup=False)
        return
    if scheduler is None:
        found = compare(release)
        who = "by its rules"
    else:
        from course.parity.decisions import load_class

        try:
            found = compare(release, load_class(scheduler))
        except ValueError as error:
            raise CourseError(str(error)) from error
        who = scheduler
    console.print(_table(release, found, who))
    if release not in RELEASES:
        console.print(
            f"{release} is none of the releases that the engine knows; its rules are {RELEASES[-1]}'s here."
        )
    if scheduler is None and release in RELEASES:
        for new in rules_of(release):
            if new.first == release:
                console.print(f"New in {release}, {new.name}: {new.says}")
    unlike = [one for one in found if one.explained is False]
    if unlike:
        console.print(f"{len(unlike)} unexplained, plain ones first:")
    for one in sorted(unlike, key=lambda one: len(one.case.work["config"]))[:10]:
        console.print(f"unexplained: {one.case.group} {one.case.name}")
    unended = Counter(one.outcome for one in found if not is_digest(one.outcome))
    for outcome, count in unended.items():
        console.print(
            f"{count} that vLLM {release} does not bring to an end (see docs/RELEASES.md): {outcome}"
        )
    if unlike:
        raise typer.Exit(1)


def _show_rule(console: Console, name: str, out: Path | None) -> None:
    from course.drift.page import read_counts
    from course.drift.shown import in_words, page, rule_named, show

    rule = rule_named(name)
    shown = show(rule)
    for line in in_words(shown, read_counts()[rule.name]):
        console.print(line, markup=False, soft_wrap=True)
    if out is not None:
        if out.suffix != ".html" or not out.parent.is_dir():
            raise CourseError(
                f"--trace {out}: it must end in .html and lie in a folder that is there"
            )
        out.write_text(page(shown), encoding="utf-8")
        console.print(f"wrote {out}", markup=False)


def _table(release: str, found: list[Comparison], who: str) -> Table:
    table = Table("workloads", "", f"equal to {PIN}", "differ", f"equal {who}", box=None)
    for group in dict.fromkeys(one.case.group for one in found):
        of_group = [one for one in found if one.case.group == group]
        changed = sum(one.changed for one in of_group)
        table.add_row(
            group,
            str(len(of_group)),
            str(len(of_group) - changed),
            str(changed),
            str(sum(one.explained is True for one in of_group)),
        )
    changed = sum(one.changed for one in found)
    explained = sum(one.explained is True for one in found)
    table.add_row(release, *map(str, (len(found), len(found) - changed, changed, explained)))
    return table


def main(argv: list[str] | None = None) -> int:
    """`python -m course.drift`, as `course drift`."""
    try:
        app(args=argv, prog_name="python -m course.drift")
    except CourseError as error:
        typer.echo(f"course: {error}", err=True)
        return 2
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0
