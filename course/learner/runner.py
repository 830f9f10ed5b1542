"""Runs labs' tests for `course.learner.grade`, in a process of its own, and writes down what happened.

    python -m course.learner.runner < BATCH      BATCH is JSON: {"root", "jobs": [...], "parallel"}

A job is one implementation of one lab: `folder` (the lab's), `impl`, `out` (where its events go), `limit`
and `test_limit` in seconds, `stop_at` (outcomes after which the rest is left), `watch_unwritten`,
`order` (seconds a test took before; the quick ones go first), `first` (tests that go before all others,
which are left if one of these does not pass), `only` (tests besides which none is run).
A single job is a pytest session in this process. With `"serve": true` each job is a fork of a
session that has collected its lab's tests; that needs a system with a dependable fork. With
`"together": true` besides, `course.kernels.lab` hears which files of a lab there are.

A session writes its events as lines of JSON while it runs, so that what an endless loop or a crash
leaves behind can still be read. On standard output comes one line for each job of a batch that has
ended: `{"job": index, "exit": status}`, with `"killed": true` if it ran past its limit.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TextIO

import pytest

from course.learner.labs import TOGETHER, is_test_file
from course.learner.own_words import own_words
from course.learner.refuse import AnswerImportedError
from course.learner.tolerances import tolerance_of

CAN_FORK = hasattr(os, "fork") and sys.platform.startswith("linux")
_NUMPY_HEAD = re.compile(
    r"^(?:Arrays are not \w+(?: \w+)*|Not equal to tolerance [^\n]*)\s*\n(?=\S)"
)
_HAS_ALARM = hasattr(signal, "setitimer")


class TimeLimit(BaseException):
    """Raised in a test that runs too long. Not an Exception, so that `except Exception` lets it by."""


class Recorder:
    """The pytest plugin: writes an event a test, with what a learner should read about it."""

    def __init__(self, job: dict[str, Any], out: TextIO) -> None:
        self.impl = str(Path(job["impl"]).resolve())
        self.folder = Path(job["folder"]).resolve()
        self.test_limit = float(job["test_limit"])
        self.deadline = time.monotonic() + float(job["limit"])
        self.watch_unwritten = bool(job.get("watch_unwritten"))
        self.stop_at = frozenset(job.get("stop_at") or ())
        self.order: dict[str, float] = dict(job.get("order") or {})
        self.first = frozenset(job.get("first") or ())
        self.only = frozenset(job.get("only") or ())
        self.failed_first = False
        self.out = out
        self.limit = self.test_limit
        self.current: dict[str, Any] = {}

    def write(self, **event: Any) -> None:
        self.out.write(json.dumps(event) + "\n")
        self.out.flush()

    # -- collection

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.only:
            items[:] = [item for item in items if _name(item) in self.only]
        if self.order:
            items.sort(key=lambda item: self.order.get(_name(item), 0.0))
        if self.first:
            items.sort(key=lambda item: _name(item) not in self.first)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(**_broken(report))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        tests = []
        for item in session.items:
            doc = getattr(getattr(item, "obj", None), "__doc__", None) or ""
            first = " ".join(doc.strip().split("\n\n")[0].split())
            tests.append({"name": _name(item), "base": _base(item), "doc": first})
        self.write(event="collected", tests=tests)

    # -- one test

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        self.current = {"name": _name(item), "outcome": "passed"}
        self.limit = max(0.1, min(self.test_limit, self.deadline - time.monotonic()))
        self.write(event="start", name=self.current["name"])
        start, cpu = time.perf_counter(), time.process_time()
        try:
            return (yield)
        finally:
            self._alarm(0)
            self.current["seconds"] = time.perf_counter() - start
            self.current["cpu_seconds"] = time.process_time() - cpu
            self.write(event="test", **self.current)
            if self.current["outcome"] in self.stop_at:
                item.session.shouldstop = "seen enough"
            elif time.monotonic() >= self.deadline:
                item.session.shouldstop = "time is up"
            if self.current["name"] in self.first:
                self.failed_first |= self.current["outcome"] not in ("passed", "skipped")
                others_follow = nextitem is not None and _name(nextitem) not in self.first
                if others_follow and self.failed_first:
                    item.session.shouldstop = "what failed still fails"

    def _alarm(self, seconds: float) -> None:
        if _HAS_ALARM:
            # Again every half second: a bare "except:" in the learner's loop swallows the first.
            signal.setitimer(signal.ITIMER_REAL, seconds, 0.5 if seconds else 0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        with self._limited():
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        with self._limited():
            if not self.watch_unwritten:
                yield
                return
            before = sys.gettrace()
            sys.settrace(self._trace)
            try:
                yield
            finally:
                sys.settrace(before)

    @contextlib.contextmanager
    def _limited(self) -> Generator[None, None, None]:
        if not _HAS_ALARM:
            yield
            return

        def too_long(signum: int, frame: FrameType | None) -> None:
            raise TimeLimit

        before = signal.signal(signal.SIGALRM, too_long)
        self._alarm(self.limit)
        try:
            yield
        finally:
            self._alarm(0)
            signal.signal(signal.SIGALRM, before)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        """A trace function that notes which functions of the file raise NotImplementedError."""
        if frame.f_code.co_filename != self.impl:
            return None

        def local(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
            if event == "exception" and issubclass(arg[0], NotImplementedError):
                touched = self.current.setdefault("unwritten", [])
                if (name := _qualname(frame)) not in touched:
                    touched.append(name)
            return local

        return local

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is None or self.current["outcome"] != "passed":
            return report
        if isinstance(call.excinfo.value, pytest.skip.Exception):
            self.current.update(outcome="skipped", message=str(call.excinfo.value))
            return report
        self.current.update(self.explain(call.excinfo.value))
        if words := self.own_words(call.excinfo.value, self.current["message"]):
            self.current["own_words"] = words
        printed = "".join(text for title, text in report.sections if "stdout" in title)
        if printed.strip():
            self.current["printed"] = printed.rstrip().splitlines()[-20:]
        if self.current["outcome"] == "time" and call.when == "setup":
            # The file itself never ends: every other test would wait for it again.
            item.session.shouldstop = "the file does not load"
        return report

    # -- what went wrong, for a learner

    def in_tests(self, file: str) -> bool:
        """Whether `file` belongs to the lab's tests, what they share included."""
        return Path(file).parent == self.folder and is_test_file(file)

    def explain(self, error: BaseException) -> dict[str, Any]:
        """The outcome, message and place of a failure.

        Outcomes: `failed` (an assertion of the test), `todo` (NotImplementedError), `time`, `syntax`,
        `error` (any other exception).
        """
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        frames = _frames(error.__traceback__)
        mine = [(f, line) for f, line in frames if f.f_code.co_filename == self.impl]
        notes = [line for note in getattr(error, "__notes__", []) for line in note.splitlines()]
        found: dict[str, Any] = {"notes": notes[:8]} if notes else {}
        if mine:
            frame, line = mine[-1]
            found |= _place(self.impl, line, _qualname(frame))
        last = frames[-1][0].f_code.co_filename if frames else ""
        text = str(error).strip()
        kind = type(error).__name__
        if isinstance(error, TimeLimit):
            message = f"Still running after {self.limit:.0f} s, and ended."
            return found | {"outcome": "time", "message": message}
        if isinstance(error, NotImplementedError) and mine and last == self.impl:
            return found | {"outcome": "todo", "message": text}
        if isinstance(error, SyntaxError) and error.filename == self.impl:
            found |= _place(self.impl, error.lineno or 1, None)
            return found | {"outcome": "syntax", "message": f"{kind}: {error.msg}"}
        if isinstance(refused := error.__context__, AnswerImportedError):
            return {"outcome": "syntax", "message": str(refused)} | _place(
                self.impl, refused.line, None
            )
        if isinstance(error, AssertionError) and (not mine or self.in_tests(last)):
            text = _NUMPY_HEAD.sub("", text)  # numpy.testing puts it before the test's own words
            failed = {"outcome": "failed", "message": text, "tolerance": self.tolerance(frames)}
            return failed | ({"notes": notes[:8]} if notes else {})
        if isinstance(error, pytest.fail.Exception):
            raised = re.fullmatch(r"DID NOT RAISE <class '(?:.*\.)?(\w+)'>", text)
            if raised:
                text = f"The test expects {raised[1]} here, and nothing was raised."
            return {"outcome": "failed", "message": text}
        message = f"{kind}: {text}" if text else kind
        if not mine:
            missing = re.match(r"module '[\w.]+' has no attribute '(\w+)'", text)
            if isinstance(error, AttributeError) and missing:
                message = f"{Path(self.impl).name} has no {missing[1]}."
            else:
                here = [(f.f_code.co_filename, line) for f, line in frames]
                here = [(file, line) for file, line in here if self.in_tests(file)]
                if here:
                    found |= _place(*here[-1], None)
        return found | {"outcome": "error", "message": message, "raised": self.pythons_type(error)}

    def pythons_type(self, error: BaseException) -> str:
        """The type of Python's that an error is, where the graded file has made a type of its own of it."""
        own, *bases = type(error).__mro__
        if getattr(sys.modules.get(own.__module__), "__file__", None) != self.impl:
            return ""
        return next(base.__name__ for base in bases if base.__module__ == "builtins")

    def tolerance(self, frames: list[tuple[FrameType, int]]) -> list[float] | None:
        """How close is close enough in the assertion that failed."""
        ours = [(f, line) for f, line in frames if self.in_tests(f.f_code.co_filename)]
        return tolerance_of(*ours[-1]) if ours else None

    def own_words(self, error: BaseException, message: str) -> list[str]:
        """The parts of an assertion's `message` that are the graded file's: what its errors say that the
        test caught. Another learner puts the same into other words."""
        caught: list[object] = [error.__cause__, error.__context__]
        for frame, _ in _frames(error.__traceback__):
            if self.in_tests(frame.f_code.co_filename):
                caught += [one for one in frame.f_locals.values() if one is not error]
        return own_words(self.impl, caught, message)


def _broken(report: pytest.CollectReport) -> dict[str, Any]:
    """The event that says which file of tests could not be collected, and why."""
    file = report.nodeid.split("::")[0].rsplit("/", 1)[-1]
    return {"event": "broken", "file": file, "message": str(report.longreprtext).strip()}


def _name(item: pytest.Item) -> str:
    """The test's name within the lab's folder, the brackets of a parametrized case included."""
    return item.nodeid.split("::", 1)[-1]


def _base(item: pytest.Item) -> str:
    """The name of the test function, without the brackets of a parametrized case."""
    return str(getattr(item, "originalname", None) or item.name)


def _frames(tb: TracebackType | None) -> list[tuple[FrameType, int]]:
    return list(traceback.walk_tb(tb))


def _qualname(frame: FrameType) -> str:
    return frame.f_code.co_qualname.replace(".<locals>", "")


def _place(path: str, line: int, function: str | None) -> dict[str, Any]:
    linecache.checkcache(path)
    return {
        "file": path,
        "line": line,
        "function": function if function != "<module>" else None,
        "code": linecache.getline(path, line).strip(),
    }


def _arguments(root: str, folder: str) -> list[str]:
    return [
        *("-q", "--no-header", "--no-summary", "--tb=short", "-p", "no:cacheprovider"),
        *("--assert=plain", "--import-mode=importlib", "--strict-markers", "-o", "addopts="),
        *("--rootdir", root, "-c", str(Path(root, "pyproject.toml")), folder),
    ]


def run_job(root: str, job: dict[str, Any]) -> int:
    """Run one job in this process; the exit status is pytest's."""
    os.environ["LAB_IMPL"] = str(Path(job["impl"]).resolve())
    with Path(job["out"]).open("w", encoding="utf-8") as out:
        recorder = Recorder(job, out)
        status = int(pytest.main(_arguments(root, job["folder"]), plugins=[recorder]))
        recorder.write(event="end", status=status)
    return status


class Forker:
    """The pytest plugin that runs a lab's tests on many files: collected once, a fork for each file."""

    def __init__(
        self, jobs: list[tuple[int, dict[str, Any]]], parallel: int, report: TextIO
    ) -> None:
        self.waiting = jobs[::-1]
        self.parallel = parallel
        self.report = report
        self.broken: dict[str, Any] = {}
        self.running: dict[int, tuple[int, float]] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken = _broken(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.parallel:
                    index, job = self.waiting.pop()
                    # A little over the limit that the session keeps itself.
                    deadline = time.monotonic() + float(job["limit"]) + 3.0
                    self.running[self._fork(session, job)] = (index, deadline)
                self._wait()
        finally:
            for pid in self.running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        return True

    def _wait(self) -> None:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in self.running:
            index, _ = self.running.pop(pid)
            self.say(job=index, exit=os.waitstatus_to_exitcode(status))
            return
        for pid, (index, deadline) in list(self.running.items()):
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                del self.running[pid]
                self.say(job=index, exit=-9, killed=True)
        time.sleep(0.002)

    def say(self, **line: Any) -> None:
        self.report.write(json.dumps(line) + "\n")
        self.report.flush()

    def _fork(self, session: pytest.Session, job: dict[str, Any]) -> int:
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):  # it may have been quicker
                os.setpgid(pid, pid)
            return pid
        status = 70
        try:
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)  # the whole group is killed with it
            self._in_child(session, job)
            status = 0
        finally:
            os._exit(status)

    def _in_child(self, session: pytest.Session, job: dict[str, Any]) -> None:
        os.environ["LAB_IMPL"] = str(Path(job["impl"]).resolve())
        with Path(job["out"]).open("w", encoding="utf-8") as out:
            recorder = Recorder(job, out)
            session.config.pluginmanager.register(recorder)
            if self.broken:
                recorder.write(**self.broken)
            items = session.items
            recorder.pytest_collection_modifyitems(items)
            recorder.pytest_collection_finish(session)
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldstop or session.shouldfail:
                    break
            recorder.write(event="end", status=0)


def serve(batch: dict[str, Any]) -> None:
    """Run a batch in forks, `parallel` at a time; the jobs of one lab after those of another."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as report:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):
            os.dup2(null, stream)
        groups: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for index, job in enumerate(batch["jobs"]):
            groups.setdefault(job["folder"], []).append((index, job))
        for folder, jobs in groups.items():
            if batch.get("together"):
                place = Path(f"{jobs[0][1]['out']}.kernels")
                place.write_text(json.dumps([job["impl"] for _, job in jobs]), encoding="utf-8")
                os.environ[TOGETHER] = str(place)
            forker = Forker(jobs, int(batch["parallel"]), report)
            # Not capture=fd: its files would be shared by all forks.
            pytest.main([*_arguments(batch["root"], folder), "--capture=sys"], plugins=[forker])
            for index, _ in forker.waiting:  # pytest gave up before it came to the tests
                forker.say(job=index, exit=1)


def main() -> int:
    batch = json.load(sys.stdin)
    if batch.get("serve"):
        serve(batch)
        return 0
    [job] = batch["jobs"]
    return run_job(batch["root"], job)


if __name__ == "__main__":
    raise SystemExit(main())
