"""`course mutate`: do a lab's tests notice small faults in its solution?

Each mutant of `solution.py` runs the lab's tests in a fork, up to the first failure. Some mutants
behave as the solution does; those stand in the lab's `proof/mutants.txt`, each with its reason:

    FUNCTION
    - LINE AS IT IS
    + LINE WITH THE FAULT
    = why nothing can notice

or, for a function none of whose faults count (one that draws a picture):

    FUNCTION
    * why
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from course.authors.mutants import Mutant, plant
from course.learner.grade import Job, run_jobs
from course.learner.labs import Course, CourseError, Lab
from course.learner.results import BAD, LabRun

SLACK = 4.0  # seconds that any mutant gets
STOP_AT = (*BAD, "todo")


@dataclass
class AllowList:
    """The equivalent mutants of a lab, each with its reason."""

    lines: dict[tuple[str, str, str], str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)

    def function_reason(self, mutant: Mutant) -> str | None:
        """Why nothing counts in the function that holds `mutant`, or in one around it."""
        function = mutant.function
        while function:
            if function in self.functions:
                return self.functions[function]
            function = function.rpartition(".")[0]
        return None


def read_allow_list(path: Path) -> AllowList:
    """Read `mutants.txt`; a file that is not there allows nothing.

    Raises CourseError naming the line where an entry is not of the form above.
    """
    allowed = AllowList()
    if not path.is_file():
        return allowed
    entry: list[tuple[int, str]] = []

    def close() -> None:
        if not entry:
            return
        (number, function), rest = entry[0], [text for _, text in entry[1:]]
        marks = "".join(text[:1] for text in rest)
        words = [text[1:].strip() for text in rest]
        if marks == "*" and words[0]:
            allowed.functions[function] = words[0]
        elif marks == "-+=" and all(words):
            allowed.lines[function, words[0], words[1]] = words[2]
        else:
            raise CourseError(
                f"{path}:{number}: an entry is FUNCTION, then '- line', '+ line', '= reason', "
                "or FUNCTION, then '* reason'"
            )
        entry.clear()

    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        if line.strip():
            entry.append((number, line.strip()))
        else:
            close()
    close()
    return allowed


@dataclass
class MutationResult:
    """What became of the mutants.

    Attributes:
        killed, survived: mutants that the tests noticed, and that they did not.
        allowed: mutants that survived and may, with the reason.
        stale: entries of the allow list that no mutant has, or that a test kills.
        num_planted: mutants that there are, of which some were chosen where they are too many.
    """

    lab: Lab
    killed: list[tuple[Mutant, str]]
    survived: list[Mutant]
    allowed: list[tuple[Mutant, str]]
    stale: list[str]
    num_planted: int

    @property
    def score(self) -> float:
        """Percent killed, of those that count."""
        total = len(self.killed) + len(self.survived)
        return 100.0 * len(self.killed) / total if total else 100.0


def mutate(
    course: Course,
    lab: Lab,
    seed: int = 0,
    most: int = 200,
    on_done: Callable[[int, int], None] | None = None,
) -> MutationResult:
    """Run the tests of `lab` on mutants of its solution, `most` at the most, chosen by `seed`.

    `on_done` hears how many have run, of how many.
    Raises CourseError where the solution itself does not pass.
    """
    if most < 1:
        raise CourseError(f"--most must be at least 1, got {most}")
    [base] = run_jobs(course.root, [Job(lab.folder, lab.solution)])
    if not base.passed:
        reason = base.problem or next(
            (f"{t.name}: {t.message}" for t in base.bad), "its tests skip"
        )
        raise CourseError(f"{lab.id}: solution.py must pass before it is mutated; {reason}")
    allow_list = read_allow_list(lab.mutants)
    every = plant(lab.solution.read_text(encoding="utf-8"))
    count = [
        m for m in every if m.key not in allow_list.lines and not allow_list.function_reason(m)
    ]
    chosen = choose(count, seed, most) + [
        mutant for mutant in every if mutant.key in allow_list.lines
    ]
    runs = _run(course, lab, chosen, base, on_done)
    result = MutationResult(lab, [], [], [], [], len(every))
    result.allowed = [(m, why) for m in every if (why := allow_list.function_reason(m))]
    noticed: set[tuple[str, str, str]] = set()
    for mutant, run in zip(chosen, runs, strict=True):
        excuse = allow_list.lines.get(mutant.key)
        if not run.passed:
            result.killed.append((mutant, _killer(run)))
            noticed.add(mutant.key)
        elif excuse is not None:
            result.allowed.append((mutant, excuse))
        else:
            result.survived.append(mutant)
    keys = {mutant.key for mutant in every}
    names = {mutant.function for mutant in every}
    for key in allow_list.lines:
        if key not in keys:
            result.stale.append(f"{key[0]}: no mutant turns {key[1]!r} into {key[2]!r}")
        elif key in noticed:
            result.stale.append(f"{key[0]}: a test notices {key[2]!r}; it needs no excuse")
    for function in allow_list.functions:
        if not any(name == function or name.startswith(function + ".") for name in names):
            result.stale.append(f"{function}: there are no mutants in it")
    return result


def choose(mutants: list[Mutant], seed: int, most: int) -> list[Mutant]:
    """All of `mutants`, or `most` of them, the same for the same `seed`; in their order."""
    if len(mutants) <= most:
        return mutants
    picked = random.Random(seed).sample(range(len(mutants)), most)
    return [mutants[index] for index in sorted(picked)]


def _run(
    course: Course,
    lab: Lab,
    mutants: list[Mutant],
    base: LabRun,
    on_done: Callable[[int, int], None] | None,
) -> list[LabRun]:
    """The runs of `mutants`, each ended at a multiple of the time that the solution took."""
    limit = SLACK + 6.0 * base.seconds
    order = {test.name: test.seconds for test in base.tests}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        # A copy of the lab, so that a mutant finds the data files that the solution finds.
        home = Path(folder, lab.folder.name)
        shutil.copytree(lab.folder, home, ignore=shutil.ignore_patterns("__pycache__"))
        jobs = []
        for index, mutant in enumerate(mutants):
            path = home / f"mutant_{index}.py"
            path.write_text(mutant.source, encoding="utf-8")
            jobs.append(Job(lab.folder, path, limit, limit, stop_at=STOP_AT, order=order))
        done = 0

        def count(index: int, run: LabRun) -> None:
            nonlocal done
            done += 1
            if on_done is not None:
                on_done(done, len(jobs))

        return run_jobs(course.root, jobs, min(2, os.cpu_count() or 1), count)


def _killer(run: LabRun) -> str:
    for test in run.tests:
        if test.outcome not in ("passed", "skipped", "not_run"):
            return test.name
    return run.problem or "nothing passed"
