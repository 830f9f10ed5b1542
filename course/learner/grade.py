"""Run a lab's tests on one implementation, and say what a failure looks like.

The tests run in another process (`course.learner.runner`), so that an endless loop, a crash or a module that
rebinds half of numpy stays there. A learner's failures are compared with the fingerprints of the lab's known
mistakes, none of which is run for that. Results are kept by content in `.course/cache/`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from course.learner.causes import PREDICTIONS, read_causes
from course.learner.fingerprints import Fingerprint, known
from course.learner.front_matter import front_matter
from course.learner.labs import PROOF, Course, CourseError, Lab
from course.learner.likeness import Likeness, looks_like
from course.learner.progress import Progress, digest, now, state_folder, write_atomically
from course.learner.results import LabRun, TestResult, lines_of, unloadable
from mini_vllm.utils.extras import how_to_get

LIMIT = 30.0  # seconds for all tests of a lab, unless its README says `seconds: …`
TEST_LIMIT = 10.0  # seconds for one test
GRACE = 5.0  # seconds over the limit, before the process itself is ended
_KEEP = 96  # results in the cache, a lab
_FORMAT = 2  # of what is in the cache
_APART = ("README.md", "starter.py", PROOF)


@dataclass(frozen=True)
class Job:
    """One file, and the folder of the lab whose tests run on it.

    `limit` and `test_limit` are in seconds; a lab that says `seconds: N` gets at least N of each.
    The run ends after the first test with an outcome in `stop_at`. With `order`, seconds by test, the
    quick tests go first. The tests named in `first` go before all others, which are run only if these pass.
    Where `only` names tests, no others are run.
    """

    folder: Path
    impl: Path
    limit: float = LIMIT
    test_limit: float = TEST_LIMIT
    stop_at: tuple[str, ...] = ()
    watch_unwritten: bool = False
    order: dict[str, float] | None = None
    first: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


def run_jobs(
    root: Path,
    jobs: Sequence[Job],
    parallel: int = 1,
    on_done: Callable[[int, LabRun], None] | None = None,
    on_test: Callable[[LabRun], None] | None = None,
    env: Mapping[str, str] | None = None,
    together: bool = False,
) -> list[LabRun]:
    """Run the jobs, and return what came of each, in the order of the jobs.

    `on_done` hears of each one as it ends. `on_test`, of a single job, hears a few times a second what
    the tests have said so far. `env` is added to the environment of the tests. With `together` the kernels of
    one lab are judged in one process, as far as they can be.
    """
    if importlib.util.find_spec("pytest") is None:
        raise CourseError(
            f"grading needs pytest, which is not installed here: {how_to_get('course')}"
        )
    from course.learner.runner import CAN_FORK

    jobs = [_with_time(job) for job in jobs]
    runs: list[LabRun | None] = [None] * len(jobs)

    def done(index: int, status: int, killed: bool = False, said: str = "") -> None:
        run = _read_run(outs[index], jobs[index], status, killed, said)
        runs[index] = run
        if on_done is not None:
            on_done(index, run)

    with tempfile.TemporaryDirectory(prefix="course-") as folder:
        outs = [Path(folder, f"{index}.jsonl") for index in range(len(jobs))]
        batch = [
            {
                key: str(value) if isinstance(value, Path) else value
                for key, value in vars(j).items()
            }
            | {"out": str(out)}
            for j, out in zip(jobs, outs, strict=True)
        ]
        if CAN_FORK and len(jobs) > 1:
            request = {"root": str(root), "jobs": batch, "parallel": parallel, "serve": True}
            request["together"] = together
            with _runner(root, env, quiet=True) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                with process.stdin as pipe:
                    pipe.write(json.dumps(request))
                for line in process.stdout:
                    if line.startswith("{"):
                        ended = json.loads(line)
                        done(ended["job"], ended["exit"], ended.get("killed", False))
                assert process.stderr is not None
                said = process.stderr.read()
            if any(run is None for run in runs):
                raise CourseError(f"the tests' process ended early: {_last_line(said)}")
        else:
            for index, job in enumerate(jobs):
                request = {"root": str(root), "jobs": [batch[index]]}
                with _runner(root, env) as process:
                    try:
                        out, said = _communicate(process, request, outs[index], job, on_test)
                        done(index, process.returncode, said=said + out)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.communicate()
                        done(index, -9, killed=True)
                    except BaseException:
                        process.kill()
                        process.wait()  # Windows removes no file that it still has open
                        raise
    return [run for run in runs if run is not None]


def _with_time(job: Job) -> Job:
    """The job with the seconds that its lab asks for: kernels are judged in processes of their own."""
    readme = job.folder / "README.md"
    values = front_matter(readme.read_text(encoding="utf-8")) if readme.is_file() else {}
    least = float(values.get("seconds", 0))
    if least <= job.test_limit:
        return job
    return replace(job, limit=max(job.limit, least), test_limit=least)


def _runner(
    root: Path, more: Mapping[str, str] | None, quiet: bool = False
) -> subprocess.Popen[str]:
    env = {**os.environ, **(more or {})}
    # The repository's own packages first; then whatever this process has, then this very package.
    path = [str(root), env.get("PYTHONPATH", ""), str(Path(__file__).resolve().parents[2])]
    env["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # other people's plugins: slow, and no two alike
    env.pop("PYTEST_ADDOPTS", None)
    env.setdefault("PYTHONHASHSEED", "0")
    env["PYTHONIOENCODING"] = "utf-8"
    if quiet:
        env.setdefault("OMP_NUM_THREADS", "1")  # several run beside each other
    return subprocess.Popen(
        [sys.executable, "-m", "course.learner.runner"], cwd=root, env=env, text=True, encoding="utf-8",
        errors="replace", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def _communicate(
    process: subprocess.Popen[str],
    request: dict[str, Any],
    events: Path,
    job: Job,
    on_test: Callable[[LabRun], None] | None,
) -> tuple[str, str]:
    """What the process wrote. Until it ends, `on_test` hears of new events."""
    text: str | None = json.dumps(request)
    end = time.monotonic() + job.limit + GRACE
    heard = 0
    while True:
        left = max(0.0, end - time.monotonic())
        try:
            return process.communicate(text, left if on_test is None else min(left, 0.05))
        except subprocess.TimeoutExpired:
            if on_test is None or not left:
                raise
        text = None  # it has been passed on
        size = events.stat().st_size if events.exists() else 0
        if size > heard:
            heard = size
            on_test(LabRun([*_Events(events).tests.values()]))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


class _Events:
    """What the events in a file add up to; the file may still be written to."""

    def __init__(self, path: Path) -> None:
        self.tests: dict[str, TestResult] = {}
        self.problem: str | None = None
        self.running: str | None = None
        self.ended = False
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in text[: text.rfind("\n") + 1].splitlines():
            event: dict[str, Any] = json.loads(line)
            kind = event.pop("event")
            if kind == "collected":
                self.tests = {test["name"]: TestResult(**test) for test in event["tests"]}
            elif kind == "broken":
                said = _last_line(event["message"])
                self.problem = f"{event['file']} cannot be loaded: {said}"
            elif kind == "start":
                self.running = event["name"]
            elif kind == "test":
                self.running = None
                vars(self.tests[event["name"]]).update(event)
            elif kind == "end":
                self.ended = True


def _read_run(out: Path, job: Job, status: int, killed: bool, said: str) -> LabRun:
    """How a job ended."""
    found = _Events(out)
    tests, problem, running, ended = found.tests, found.problem, found.running, found.ended
    some = bool(job.stop_at or job.first)  # not all tests have to run
    if killed or not ended:
        stuck = tests.get(running or "")
        what = f"while {running} ran" if running else "before any test ran"
        if killed:
            problem = f"The tests were still running after {job.limit:.0f} s and were ended {what}."
            if stuck is not None:
                stuck.outcome = "time"
                stuck.message = f"Still running after {job.limit:.0f} s, and ended."
        else:
            problem = f"Python itself ended {what} (exit status {status}): {_last_line(said)}"
            if stuck is not None:
                stuck.outcome, stuck.message = "error", "Python itself ended here."
    elif not tests and problem is None:
        problem = f"{job.folder.name} has no tests, or could not be read: {_last_line(said)}"
    elif problem is None and not some and any(t.outcome == "not_run" for t in tests.values()):
        problem = f"Time was up after {job.limit:.0f} s; the tests after that were not run."
        if any(t.outcome == "time" and t.function is None for t in tests.values()):
            problem = f"{job.impl.name} does not load: what it does at the top level never ends."
    return LabRun(list(tests.values()), problem)


# -- results by content ---------------------------------------------------------------------------


@functools.cache
def engine_digest(root: Path) -> str:
    """Changes with the engine, and with what runs a lab's tests."""
    state = hashlib.sha256()
    bench = root / "course" / "kernels", *sorted(root.glob("phase-*/kernels"))  # the kernel labs'
    folders = root / "mini_vllm", *bench
    modules = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    for path in [root / "conftest.py", *modules]:
        if path.is_file():
            state.update(path.name.encode() + b"\0" + path.read_bytes())
    for name in ("grade.py", "runner.py", "labs.py", "refuse.py", "own_words.py", "tolerances.py"):
        state.update(Path(__file__).with_name(name).read_bytes())
    state.update(f"{_FORMAT} {sys.version_info[:3]}".encode())
    return state.hexdigest()


def _key(root: Path, lab: Lab, job: Job) -> str:
    """Changes with anything that the tests' verdict on the job's file can depend on."""
    state = hashlib.sha256(f"{engine_digest(root)} {python_version()} {version('numpy')}".encode())
    for path in sorted(lab.folder.rglob("*")):
        below = path.relative_to(lab.folder)
        apart = below.parts[0] in _APART
        if path.is_file() and not apart and "__pycache__" not in below.parts:
            state.update(str(below).encode() + b"\0" + path.read_bytes())
    state.update(job.impl.name.encode() + b"\0" + job.impl.read_bytes())
    state.update(f"{job.stop_at} {job.watch_unwritten} {job.only} {lab.builds}".encode())
    return state.hexdigest()[:24]


def _file(root: Path, lab: Lab, job: Job) -> Path:
    """Where the result of the job is kept."""
    folder = state_folder(root) / "cache" / lab.id
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{_key(root, lab, job)}.json"


def _cache(file: Path, run: LabRun) -> None:
    """Keep what the same files would give again."""
    if run.repeatable:
        write_atomically(file, json.dumps(asdict(run)))


def cached_runs(
    root: Path,
    jobs: Sequence[tuple[Lab, Job]],
    on_wait: Callable[[int], None] | None = None,
    fresh: bool = False,
    on_done: Callable[[int, LabRun], None] | None = None,
    on_test: Callable[[LabRun], None] | None = None,
    together: bool = False,
) -> list[LabRun]:
    """What came of the jobs, from the cache where the same files have been run before.

    `on_wait` hears how many have to be run now. With `fresh` all of them are. `on_done`, `on_test` and
    `together` are as in `run_jobs`.
    """
    files = [_file(root, lab, job) for lab, job in jobs]
    runs: list[LabRun | None] = [None if fresh else _read_cached(file) for file in files]
    open_ = [index for index, run in enumerate(runs) if run is None]
    if open_:
        if on_wait is not None:
            on_wait(len(open_))
        parallel = min(2, os.cpu_count() or 1)
        asked = [jobs[index][1] for index in open_]
        new = run_jobs(root, asked, parallel, on_done, on_test, together=together)
        for index, run in zip(open_, new, strict=True):
            runs[index] = run
            _cache(files[index], run)
        for folder in {file.parent for file in files}:
            old = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in old[:-_KEEP]:
                path.unlink(missing_ok=True)
    return [run for run in runs if run is not None]


def _read_cached(file: Path) -> LabRun | None:
    try:
        content = json.loads(file.read_bytes())
        return LabRun([TestResult(**test) for test in content["tests"]])
    except (OSError, ValueError, TypeError, KeyError):
        return None


# -- a learner's lab ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grade:
    """A lab graded: the run, and the known mistakes it looks like, if any.

    `met` holds the keys of those mistakes that were there at an earlier grading already: a first time
    says what a mistake looks like, a second time how to mend it.
    """

    lab: Lab
    run: LabRun
    likeness: Likeness | None = None
    met: frozenset[str] = frozenset()


def failed_before(last: LabRun | None) -> tuple[str, ...]:
    """The tests that did not pass in `last`; none where none passed, for then there are no others."""
    tests = last.tests if last else []
    names = [test.name for test in tests if test.outcome not in ("passed", "skipped")]
    return tuple(names) if len(names) < len(tests) else ()


def run_lab(
    course: Course,
    lab: Lab,
    progress: Progress,
    on_test: Callable[[LabRun], None] | None = None,
    last: LabRun | None = None,
) -> LabRun:
    """Run the tests of `lab` on starter.py, and keep the result in `progress`.

    `on_test` hears what the tests have said so far. With `last`, the run before this one, the tests
    that did not pass then are run first, and the others only when these pass; until then they count as
    they did.
    """
    for path in (lab.starter, lab.test):
        if not path.is_file():
            raise CourseError(f"lab {lab.id}: there is no {course.show(path)}")
    before = digest(lab.starter)
    then = {test.name: test for test in last.tests} if last else {}
    job = Job(lab.folder, lab.starter, first=failed_before(last))
    [run] = cached_runs(course.root, [(lab, job)], fresh=True, on_test=on_test)
    if job.first and unloadable(run) is None:
        tests = [then.get(t.name, t) if t.outcome == "not_run" else t for t in run.tests]
        places = {name: place for place, name in enumerate(then)}
        run = LabRun(sorted(tests, key=lambda t: places.get(t.name, len(then))), run.problem)
    _keep(progress, lab, run, before)
    return run


def compare(lab: Lab, run: LabRun) -> Likeness | None:
    """The known mistakes that what `run` fails looks like."""
    if not run.bad or run.problem is not None or any(t.outcome == "syntax" for t in run.bad):
        return None
    mine, mistakes, causes = Fingerprint.of(run), known(lab.folder), read_causes(lab)
    found = looks_like(mine, mistakes)
    predicted = {test.name for test in run.bad if causes.about(test) == PREDICTIONS}
    if not predicted or (found is not None and found.sure):
        return found
    # a wrong prediction is no mistake of the code, and says nothing of one
    return looks_like(mine.among(mine.tests - predicted), mistakes) or found


def grade_many(
    course: Course, labs: Sequence[Lab], progress: Progress, on_grade: Callable[[Grade], None]
) -> None:
    """Grade several labs, without a comparison with known mistakes.

    `on_grade` gets them in the order of `labs`, each as soon as it and those before it are through.
    """
    there = [lab for lab in labs if lab.starter.is_file() and lab.test.is_file()]
    if missing := [lab.id for lab in labs if lab not in there]:
        raise CourseError(f"starter.py or test_lab.py is missing in {', '.join(missing)}")
    before = [digest(lab.starter) for lab in labs]
    jobs = [Job(lab.folder, lab.starter) for lab in labs]
    files = [_file(course.root, lab, job) for lab, job in zip(labs, jobs, strict=True)]
    ended: dict[int, LabRun] = {}
    told = 0

    def done(index: int, run: LabRun) -> None:
        nonlocal told
        ended[index] = run
        _keep(progress, labs[index], run, before[index])
        _cache(files[index], run)
        while told in ended:
            on_grade(Grade(labs[told], ended[told]))
            told += 1

    run_jobs(course.root, jobs, min(2, os.cpu_count() or 1), done)


def _keep(progress: Progress, lab: Lab, run: LabRun, content: str) -> None:
    with progress.update(lab) as entry:
        entry.attempts += 1
        words = [line.word for line in lines_of(run)]
        entry.passed = words.count("pass")
        entry.failed = len(words) - words.count("pass") - words.count("skip")
        if not run.passed:
            entry.failed = entry.failed or 1  # nothing failed, but nothing ran either
            if entry.passed_digest == content:
                entry.passed_digest = None
        else:
            entry.passed_at = entry.passed_at or now()
            entry.passed_digest = content
            entry.failing, entry.causes, entry.likely, entry.named = [], [], [], []
