"""The lab contract, as runs: a starter fails, a solution passes, a mistake fails as its fingerprint says.

All tests run on a tenth of the mistakes, drawn anew for each commit, and on those whose fingerprint is new
since the commit before. On any other only the test that its entry names: it has to fail as before.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from course.learner.fingerprints import (
    Fingerprint,
    Record,
    parse_record,
    read_record,
    stale,
    write_record,
)
from course.learner.grade import Job, cached_runs, engine_digest, run_jobs
from course.learner.labs import Course, CourseError, Lab
from course.learner.mistakes import Mistake, read_mistakes, write_out
from course.learner.results import LabRun

MAX_SECONDS = 3.0
LIMIT = 90.0  # seconds for a mistake by the clock: more than a learner has, as other things run beside it
TEST_LIMIT = 24.0
_KEPT_AT_ONCE = (
    8  # mistakes after which their fingerprints are kept: a run of hours may be broken off
)
# A skip for want of a package. A test of a kernel may also wait for the one before it, which has failed.
_WANTING = re.compile(r"(torch|triton|vllm): |could not import")
SHARE = 10  # one of so many mistakes is drawn
DRAW = "MINI_VLLM_DRAW"  # draws, in the place of the commit's id
CHECKOUT = "MINI_VLLM_CHECKOUT"  # the checkout that a copy without its history was made of


# -- which mistakes are proved wholly --------------------------------------------------------------


def _git(root: Path, *arguments: str) -> str | None:
    """What git says of the checkout; None where there is none, or git has no answer."""
    command = ["git", "-C", os.environ.get(CHECKOUT) or str(root), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def draw_of(root: Path) -> str:
    """What the tenth is drawn by: the commit's id, or, without a history, a digest of the engine."""
    return (os.environ.get(DRAW) or _git(root, "rev-parse", "HEAD") or engine_digest(root)).strip()


def _is_drawn(draw: str, lab: Lab, mistake: Mistake) -> bool:
    digest = hashlib.sha256(f"{draw} {lab.id} {mistake.key}".encode()).digest()
    return int.from_bytes(digest[:8]) % SHARE == 0


def _record_before(course: Course, lab: Lab) -> Record | None:
    """The lab's fingerprints as the commit before had them; None where nobody knows."""
    if _git(course.root, "rev-parse", "HEAD~1") is None:
        return None
    path = lab.fingerprints.relative_to(course.root).as_posix()
    text = _git(course.root, "show", f"HEAD~1:{path}")
    return Record((), {}) if text is None else parse_record(text, path)


def proved_wholly(course: Course, lab: Lab, full: bool = False) -> list[Mistake]:
    """The mistakes of `lab` on which all tests are run: the drawn ones and the changed ones, or all."""
    mistakes, record = read_mistakes(lab.folder), read_record(lab.folder)
    there = [mistake for mistake in mistakes if record.fresh(mistake) is not None]
    if full:
        return there
    draw, before = draw_of(course.root), _record_before(course, lab)

    def changed(mistake: Mistake) -> bool:
        old = before.entries.get(mistake.key) if before is not None else record.entries[mistake.key]
        return old is None or old[0] != record.entries[mistake.key][0]

    return [mistake for mistake in there if changed(mistake) or _is_drawn(draw, lab, mistake)]


def whole_job(lab: Lab, path: Path) -> Job:
    """All tests on a mistake that lies at `path`, with more time than a learner has."""
    return Job(lab.folder, path, LIMIT, TEST_LIMIT)


# -- the runs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    lab: Lab
    job: Job
    check: Callable[[LabRun], Iterator[str]]


def behaviour(course: Course, labs: Sequence[Lab], full: bool = False) -> dict[str, list[str]]:
    """The rules that `labs` break when they run, by lab id; with `full`, all tests run on every mistake.

    All of them run in one batch, but for those that ran before on the same files.
    """
    found: dict[str, list[str]] = {lab.id: [] for lab in labs}
    with tempfile.TemporaryDirectory(prefix="mistakes-") as folder:
        tasks: list[_Task] = []
        for lab in labs:
            tasks.append(_Task(lab, Job(lab.folder, lab.solution), _solution_check(course, lab)))
            starter = Job(lab.folder, lab.starter, watch_unwritten=True)
            tasks.append(_Task(lab, starter, _starter_check(course, lab)))
            try:
                found[lab.id] += [_stale(lab, mistake) for mistake in stale(lab.folder)]
                tasks += _mistake_tasks(course, lab, Path(folder), full)
            except (CourseError, SyntaxError):
                continue  # `pages_and_code` says what is amiss
        jobs = [(task.lab, task.job) for task in tasks]
        runs = cached_runs(course.root, jobs, together=True)
    for task, run in zip(tasks, runs, strict=True):
        found[task.lab.id] += task.check(run)
    return found


def _stale(lab: Lab, mistake: Mistake) -> str:
    return (
        f"{lab.id}: {mistake.key}: no fingerprint of it as it is now: "
        f"course author contract {lab.id} --write"
    )


def _solution_check(course: Course, lab: Lab) -> Callable[[LabRun], Iterator[str]]:
    return lambda run: (f"{course.show(lab.solution)}: {said}" for said in _solution_ran(run, lab))


def _starter_check(course: Course, lab: Lab) -> Callable[[LabRun], Iterator[str]]:
    return lambda run: (f"{course.show(lab.starter)}: {said}" for said in _starter_ran(run))


def _mistake_tasks(course: Course, lab: Lab, folder: Path, full: bool) -> Iterator[_Task]:
    record = read_record(lab.folder)
    whole = {mistake.key for mistake in proved_wholly(course, lab, full)}
    mistakes = [one for one in read_mistakes(lab.folder) if record.fresh(one) is not None]
    for mistake, path in zip(mistakes, write_out(mistakes, folder), strict=True):
        fingerprint = record.entries[mistake.key][1]
        job = whole_job(lab, path)
        if mistake.key not in whole:
            job = replace(job, only=(_telling_case(mistake, fingerprint),))

        def check(
            run: LabRun, mistake: Mistake = mistake, fingerprint: Fingerprint = fingerprint
        ) -> Iterator[str]:
            problems = [*_mistake_ran(run, mistake.test)] or [*_as_said(run, fingerprint, full)]
            return (f"{lab.id}: {mistake.key}: {problem}" for problem in problems)

        yield _Task(lab, job, check)


def _telling_case(mistake: Mistake, fingerprint: Fingerprint) -> str:
    """The first case that an assertion fails of the test that `mistake` names; else that test."""
    for name, said in fingerprint.fails.items():
        if name.split("[")[0].split("::")[-1] == mistake.test and said.startswith("failed"):
            return name
    return mistake.test


def _as_said(run: LabRun, fingerprint: Fingerprint, in_words: bool) -> Iterator[str]:
    """What a run of a mistake says otherwise than its fingerprint: another outcome of a test.

    `in_words`: another message too. A number of a message may lie so that another processor's last digit
    rounds it otherwise, which is nobody's fault, so only those ask who took the fingerprints themselves.
    """
    new = Fingerprint.of(run)
    both = new.tests & fingerprint.tests
    got, wanted = new.among(both).fails, fingerprint.among(both).fails
    if not in_words:
        got, wanted = _outcomes(got), _outcomes(wanted)
    if differ := sorted(name for name in got.keys() | wanted if got.get(name) != wanted.get(name)):
        yield f"{', '.join(differ)}: not as its fingerprint says; course author contract --write"


def _outcomes(fails: Mapping[str, str]) -> Mapping[str, str]:
    """The outcomes alone of what `Fingerprint.fails` says."""
    return {name: said.split()[0] for name, said in fails.items()}


# -- taking fingerprints --------------------------------------------------------------------------


def _as_on_another() -> dict[str, str]:
    """What makes numpy and OpenBLAS compute as on an older processor: the last digits come out otherwise."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return {}
    import numpy as np

    config: Any = np.show_config(mode="dicts")
    features = " ".join(config["SIMD Extensions"].get("found", []))
    return {"OPENBLAS_CORETYPE": "Sandybridge", "NPY_DISABLE_CPU_FEATURES": features}


def take_fingerprints(
    course: Course, lab: Lab, full: bool = False, on_done: Callable[[int, int], None] | None = None
) -> Iterator[str]:
    """Run the mistakes of `lab` that are stale, with `full` all, and keep what they fail.

    Each is run twice, the second time as on an older processor: a test that says something else then tells
    nothing, and is left out. Yields what keeps a mistake from having a fingerprint. What was taken is kept as
    it comes. `on_done` hears how many have run, of how many.
    """
    mistakes = read_mistakes(lab.folder) if full else stale(lab.folder)
    done = 0

    def count(index: int, run: LabRun) -> None:
        nonlocal done
        done += 1
        if on_done is not None:
            on_done(done, 2 * len(mistakes))

    parallel = min(2, os.cpu_count() or 1)
    for first in range(0, len(mistakes), _KEPT_AT_ONCE):
        some = mistakes[first : first + _KEPT_AT_ONCE]
        with tempfile.TemporaryDirectory(prefix="mistakes-") as folder:
            jobs = [whole_job(lab, path) for path in write_out(some, Path(folder))]
            runs = run_jobs(course.root, jobs, parallel, count)
            again = run_jobs(course.root, jobs, parallel, count, env=_as_on_another())
        taken = {}
        for mistake, run, other in zip(some, runs, again, strict=True):
            skipped = [t for t in run.tests if t.outcome == "skipped" and _WANTING.match(t.message)]
            if skipped:
                said = skipped[0].message
                yield f"{lab.id}: take its fingerprints where all its tests run; here: {said}"
                return
            if problems := [*_mistake_ran(run, mistake.test)]:
                yield f"{lab.id}: {mistake.key}: {problems[0]}"
                continue
            first_says, other_says = Fingerprint.of(run), Fingerprint.of(other)
            found = first_says.agreed(other_says)
            case = _telling_case(mistake, found)
            if case not in found.fails:
                case = _telling_case(mistake, first_says)
            outcomes = [_outcomes(says.fails).get(case) for says in (first_says, other_says)]
            if case in first_says.fails and outcomes[0] == outcomes[1]:
                # The test that has to refuse it counts, though a number in its message is rounded otherwise.
                fails = {**found.fails, case: first_says.fails[case]}
                found = Fingerprint(fails, found.passes)
            if case in found.fails:
                taken[mistake.key] = found
            else:
                yield f"{lab.id}: {mistake.key}: {mistake.test} says something else each time it is run"
        write_record(lab.folder, taken)


# -- what a run has to be -------------------------------------------------------------------------


def _nothing_ran(run: LabRun) -> bool:
    return run.problem is None and all(test.outcome == "skipped" for test in run.tests)


def _solution_ran(run: LabRun, lab: Lab) -> Iterator[str]:
    if _nothing_ran(run):
        return
    if not run.passed:
        bad = [
            f"{t.name}: {t.message}" for t in run.tests if t.outcome not in ("passed", "skipped")
        ]
        yield f"does not pass: {run.problem or bad[0]}"
        return
    # By the processor, not by the clock: other work beside it is not the lab's fault.
    seconds = sum(test.cpu_seconds for test in run.tests)
    # A lab that asks for more time by the clock has as much of the processor's: torch alone takes a second
    # or two to import, and where it is missing these tests cost the learner's suite nothing.
    limit = lab.seconds or MAX_SECONDS
    if seconds >= limit:
        limit *= slowness()
    if seconds >= limit:
        slow = max(run.tests, key=lambda test: test.cpu_seconds)
        yield (
            f"its tests take {seconds:.1f} s, the limit is {limit:.1f} s here; "
            f"{slow.name} alone takes {slow.cpu_seconds:.1f} s"
        )


def slowness() -> float:
    """How many times as long as a current laptop's core this one takes just now, at least 1: a loop over
    global names, as `.ci/run` has it, that is done there in 200 ms of processor time."""
    start = time.process_time()
    exec("total = 0\nfor number in range(5_000_000):\n    total += number", {})
    return max(1.0, (time.process_time() - start) / 0.2)


def _starter_ran(run: LabRun) -> Iterator[str]:
    if _nothing_ran(run):
        return
    if run.problem is not None:
        yield run.problem
    if run.passed:
        yield "passes"
    elif not any(test.outcome == "todo" for test in run.tests):
        yield "no test runs into a function that is not written yet"
    for test in run.tests:
        if test.outcome == "passed" and test.unwritten:
            yield f"{test.name} passes, though {test.unwritten[0]} is not written yet"


def _mistake_ran(run: LabRun, test: str) -> Iterator[str]:
    """What is amiss with a mistake that `test` has to refuse. What the other tests say does not matter."""
    mine = [t for t in run.tests if t.base == test]
    if run.problem is None and all(t.outcome == "skipped" for t in mine):
        return
    bad = [t for t in mine if t.outcome not in ("passed", "skipped", "not_run")]
    if any(t.outcome == "failed" and t.message for t in bad):
        return
    if bad:
        [first, *_] = bad
        yield f"fails only by {first.name}: {first.message}; an assertion has to say what is wrong"
    elif run.problem is not None:
        yield run.problem
    else:
        yield f"passes {test}, which should refuse it"
