"""Is "this looks like …" true? Every known mistake and planted fault of the labs, and what is said of it.

    python -m course.authors.evaluate [LAB …] [--mutants N] [--others N] [--list]

A case (`course.authors.cases`) is *silent* where no mistake is named; most mutants are no mistake that
anybody described. It is *right* where the mistake named, or one of two, is the one it was made from. A
mutant of the solution was made from none: what is named is right only if `judged.tsv` says so, where a
person has read both. So a mutant that nobody has judged counts as *wrong*. Cases that fail no test are
left out.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from course.authors.cases import Case, cases_of, run_cases
from course.learner.grade import Grade, compare
from course.learner.labs import Course, CourseError, Lab, load_course
from course.learner.mistakes import Mistake
from course.learner.report import MOST_LINES, make_console, show_grade
from course.learner.results import LabRun

LEAST = 95.0  # percent right or silent
JUDGED = Path(__file__).with_name("judged.tsv")
Judged = dict[tuple[str, ...], bool]


def read_judged(path: Path = JUDGED) -> Judged:
    """What people said of (lab, mistake, function, old line, new line).

    Raises CourseError naming the line that is not of this form.
    """
    found: Judged = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        *key, verdict, why = line.split("\t")
        if len(key) != 5 or verdict not in ("right", "wrong") or not why.strip():
            raise CourseError(f"{path}:{number}: seven fields, the sixth 'right' or 'wrong'")
        found[tuple(key)] = verdict == "right"
    return found


@dataclass
class Evaluation:
    """What was said of a lab's cases.

    Attributes:
        counts: `right`, `silent` and `wrong`.
        named: of the right ones, those made from a mistake; of them `num_made` could be named.
        missed: mistakes that are not recognised as themselves.
        misled: the cases of which something wrong was said, in words.
        longest: lines of the longest output of `course grade`.
    """

    lab: Lab
    counts: Counter[str] = field(default_factory=Counter)
    named: int = 0
    num_made: int = 0
    missed: list[str] = field(default_factory=list)
    misled: list[str] = field(default_factory=list)
    longest: int = 0

    @property
    def share(self) -> float:
        """Percent right or silent."""
        total = sum(self.counts.values())
        return 100.0 * (total - self.counts["wrong"]) / total if total else 100.0


def verdict(lab: Lab, case: Case, said: Sequence[Mistake], judged: Judged) -> str:
    """`right`, `silent` or `wrong`; what is named is `said`."""
    names = [mistake.key for mistake in said]
    if not names:
        return "silent"
    if case.truth in names:
        return "right"
    mutant = case.mutant
    keys = [(lab.id, name, *mutant.key) for name in names] if mutant is not None else []
    return "right" if any(judged.get(key, False) for key in keys) else "wrong"


def evaluate(
    course: Course, lab: Lab, cases: Sequence[Case], runs: Sequence[LabRun], judged: Judged
) -> Evaluation:
    """What `course grade` says of each case."""
    found = Evaluation(lab)
    for case, run in zip(cases, runs, strict=True):
        if not run.bad:
            continue
        likeness = compare(lab, run)
        said = likeness.mistakes if likeness is not None else ()
        what = verdict(lab, case, said, judged)
        found.counts[what] += 1
        if case.truth:
            found.num_made += 1
            found.named += what == "right"
        if case.kind == "wrong" and what != "right":
            found.missed.append(case.truth)
        if what == "wrong" and likeness is not None:
            where = f"{case.mutant.function}:" if case.mutant is not None else ""
            words = " ".join(filter(None, (case.kind, case.truth, where, case.note)))
            found.misled.append(f"{words}\n  {likeness.sentence}")
        out = io.StringIO()
        met = frozenset(mistake.key for mistake in said)  # every hint: as long as it gets
        show_grade(Console(file=out, width=100), course, Grade(lab, run, likeness, met))
        found.longest = max(found.longest, out.getvalue().count("\n"))
    return found


def evaluate_lab(
    course: Course,
    lab: Lab,
    most_mutants: int,
    most_others: int,
    on_done: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Make the cases of `lab`, run those that have not run before, and evaluate all."""
    cases = cases_of(lab, most_mutants, most_others)
    runs = run_cases(course, lab, cases, on_done)
    return evaluate(course, lab, cases, runs, read_judged())


def table_of(found: Sequence[Evaluation]) -> Table:
    """One line a lab, and one for all."""
    table = Table.grid(padding=(0, 2))
    heads = ("lab", "cases", "right", "silent", "wrong", "right or silent", "longest output")
    for head in heads:
        table.add_column(justify="left" if head == "lab" else "right")
    table.add_row(*heads)
    total = sum((one.counts for one in found), Counter[str]())
    share = 100.0 * (1 - total["wrong"] / max(1, sum(total.values())))
    rows = [(one.lab.id, one.counts, one.share, one.longest) for one in found]
    if len(rows) > 1:
        rows.append(("all", total, share, max(one.longest for one in found)))
    for name, counts, percent, longest in rows:
        numbers = [sum(counts.values()), *(counts[what] for what in ("right", "silent", "wrong"))]
        table.add_row(name, *map(str, numbers), f"{percent:.1f} %", f"{longest} lines")
    return table


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="LAB…", show_default=False)] = None,
    mutants: Annotated[int, typer.Option(metavar="N", help="Mutants a lab, at most.")] = 1000,
    others: Annotated[int, typer.Option(metavar="N", help="Variants of each mistake.")] = 4,
    show: Annotated[bool, typer.Option("--list", help="Each case that was misled.")] = False,
) -> None:
    """Is "this looks like …" true? Exit status 1 below 95 %, or where a mistake is not recognised."""
    course = load_course(Path.cwd())
    console, warn = make_console(), make_console(stderr=True)
    labs = [course.resolve(name) for name in names or []] or list(course.labs)
    found = []
    for lab in labs:
        with warn.status(f"{lab.id} …") as status:

            def told(done: int, number: int, name: str = lab.id) -> None:
                status.update(f"{name}: {done} of {number} run")

            found.append(evaluate_lab(course, lab, mutants, others, told))
    console.print(table_of(found))
    named, made = sum(one.named for one in found), sum(one.num_made for one in found)
    console.print(f"Of {made} cases made from a mistake, {named} are given its name.")
    for one in found:
        for text in one.misled if show else []:
            console.print(f"{one.lab.id} {text}", soft_wrap=True, markup=False)
        for key in one.missed:
            console.print(f"{one.lab.id}: {key} is not recognised as itself", markup=False)
    bad = any(one.share < LEAST or one.missed or one.longest > MOST_LINES for one in found)
    raise typer.Exit(1 if bad else 0)


if __name__ == "__main__":
    typer.run(main)
