"""What `course weigh` prints: two tables a phase, and one of the course. They fit into 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from course.authors.weigh import ALLOWANCES, EXEMPT, LIMITS, PAGES, LabWeight, PhaseWeight

_OVER = "bold red"
_LAB_COLUMNS = {
    "README": "a lab's README",
    "finds": "what one finds",
    "minutes": "a lab's time",
    "lines": "a lab's code",
    "mistakes": "a lab's mistakes",
}


def show_weights(console: Console, weights: Sequence[PhaseWeight]) -> None:
    """Print `weights`; `!` marks what is more than its limit."""
    console.print("Words as a reader sees them, code and outputs too. `!`: more than the limit.\n")
    for weight in weights:
        _show_phase(console, weight)
    _show_total(console, weights)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def _cell(value: float | None, what: str) -> Text:
    """A weight against its limit; a blank keeps the digits of those within it in line."""
    if value is None:
        return Text("- ")
    number = f"{value:,}" if isinstance(value, int) else f"{value:.1f}"
    over = value > LIMITS[what].most
    return Text(f"{number}{'!' if over else ' '}", style=_OVER if over else "")


def _limit(what: str) -> Text:
    limit = LIMITS[what]
    low = f"{limit.least}-" if limit.least else ""
    return Text(f"{low}{limit.most:,} ", style="dim")


def _show_phase(console: Console, weight: PhaseWeight) -> None:
    phase = weight.phase
    console.print(Text(f"Phase {phase.number:02}  {phase.title}", style="bold"))
    if why := EXEMPT.get(phase.number):
        console.print(f"Not held to the limits: {why}.")
    for (number, what), (most, why) in ALLOWANCES.items():
        if number == phase.number:
            console.print(f"{what} may be up to {most}: {why}.")
    table = _table("", "is", "at most")
    table.add_column("")
    for what in PAGES:
        pages = weight.pages[what]
        if not pages:
            table.add_row(what, _cell(None, what), _limit(what), "words")
        for name, count in pages.items():
            unit = "words" if len(pages) == 1 else f"words, {name}"
            table.add_row(what, _cell(count, what), _limit(what), unit)
    table.add_row("labs", _cell(len(weight.labs), "labs"), _limit("labs"), "")
    if weight.labs:
        longest = max(weight.labs, key=lambda lab: lab.readme)
        what = "a lab's README"
        words = f"words, {longest.lab.id}"
        table.add_row("longest README", _cell(longest.readme, what), _limit(what), words)
    marked = ", ".join(lab.lab.id for lab in weight.core) or "no lab is marked path: core"
    table.add_row("core labs", _cell(len(weight.core), "core labs"), _limit("core labs"), marked)
    table.add_row("core", _cell(weight.core_hours, "core"), _limit("core"), "hours")
    table.add_row("whole phase", f"{weight.hours:.1f} ", "", "hours")
    table.add_row("", f"{weight.words:,} ", "", "words")
    console.print(Padding(table, (0, 0, 0, 2)))
    if weight.labs:
        console.print(Padding(_labs(weight.labs), (0, 0, 0, 2)))


def _labs(labs: Sequence[LabWeight]) -> Table:
    table = _table("lab", *_LAB_COLUMNS)
    for one in labs:
        values = (one.readme, one.findings, one.lab.minutes, one.lines, one.mistakes)
        cells = map(_cell, values, _LAB_COLUMNS.values())
        table.add_row(one.lab.id, *cells)
    table.add_row(Text("limit", style="dim"), *map(_limit, _LAB_COLUMNS.values()))
    return table


def _show_total(console: Console, weights: Sequence[PhaseWeight]) -> None:
    table = _table("phase", "words", "hours", "labs", "lab minutes", "lines", "mistakes")
    names = [f"{weight.phase.number:02}" for weight in weights]
    rows = [_totals(weight) for weight in weights]
    if len(rows) > 1:
        names.append("all")
        rows.append([sum(column) for column in zip(*rows, strict=True)])
    for name, (words, hours, *counts) in zip(names, rows, strict=True):
        table.add_row(name, f"{words:,}", f"{hours:.1f}", *(f"{n:,}" for n in counts))
    console.print(table)


def _totals(weight: PhaseWeight) -> list[float]:
    minutes = sum(one.lab.minutes for one in weight.labs)
    lines = sum(one.lines for one in weight.labs)
    mistakes = sum(one.mistakes for one in weight.labs)
    return [weight.words, weight.hours, len(weight.labs), minutes, lines, mistakes]
