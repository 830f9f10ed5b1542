"""A report in the terminal: a row a finding, a table of what was compiled."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from course.kernels.problems import BENCHMARKS
from course.kernels.report import Report

_VERDICTS = {
    True: Text("accepts", style="green"),
    False: Text("REFUSES", style="bold red"),
    None: Text("-", style="dim"),
}
NOT_HERE = "Only a GPU can say how fast it is: python {}."


def show(console: Console, report: Report) -> None:
    """Print what each judge found, the refused first in the summing up."""
    grid = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in report.findings:
        grid.add_row(
            Text(finding.judge, style="bold"), _VERDICTS[finding.ok], Text(finding.message)
        )
    console.print(Text(f"{report.path}, problem {report.problem}", style="bold"), soft_wrap=True)
    console.print(grid)
    rows = [row for finding in report.of("compiled") for row in finding.figures.get("rows", [])]
    if rows:
        console.print()
        console.print(machine_code(rows))
    console.print()
    if report.refused_by:
        console.print(Text(f"Refused by {', '.join(report.refused_by)}.", style="bold red"))
    elif report.ok:
        where = NOT_HERE.format(BENCHMARKS[report.problem])
        console.print(Text(f"Accepted. {where}", style="bold green"))
    else:
        console.print(Text("Not judged.", style="bold yellow"))


def machine_code(rows: list[dict[str, object]]) -> Table:
    """What the compiler made, one row for each kernel and architecture."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    before = None
    for row in rows:
        cells = [str(value) for value in row.values()]
        if cells[0] == before:
            cells[0] = ""
        before = str(next(iter(row.values())))
        table.add_row(*cells)
    return table
