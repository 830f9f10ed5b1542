"""A process for each kernel file, in which it is loaded and called, and that holds no answer.

The process that judges must know what comes out, and a kernel's file can look anywhere in its own process.
So the two are kept apart. Before the judging process has computed anything, it forks another (`Runner`),
which knows the inputs alone; that one forks one more for each file. Commands and results go through a pipe.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import torch
from triton.runtime.interpreter import InterpretedFunction

from course.kernels import right
from course.kernels.case import Case
from course.kernels.loading import CHOICE, Entry, Refused, call, load_entry, processors_of
from course.kernels.memory import memory_of
from course.kernels.ran import Ran
from course.kernels.record import Recorder
from course.kernels.starts import Start, starts_of_all

TIMEOUT = 540  # seconds for one call


class GoneError(Exception):
    """The process that ran the kernel has ended; the message says how."""


class Runner:
    """Runs files on `cases`. `seen` are the inputs on which it is only looked at what they start."""

    def __init__(self, entry: str, cases: list[Case], seen: list[dict[str, Any]]) -> None:
        self._mine, theirs = Pipe()
        self._process = os.fork()
        if self._process:
            theirs.close()
            return
        self._mine.close()
        try:
            _wait_for_files(theirs, entry, cases, seen)
        finally:
            os._exit(0)

    def open(self, path: Path) -> None:
        """Load a file, in a new process. Raises Refused, or GoneError."""
        self._ask(str(path))

    def run(self, case: int, how: str, order: str, config: int = 0) -> Ran:
        """One call. `how`: "first"; "again", with other numbers; "whole", with those that `Case.flip` makes;
        "flipped", with those only while a kernel runs. Raises Refused, or GoneError."""
        found: Ran = self._ask((case, how, order, config))
        return found

    def starts(self) -> list[list[Start]]:
        found: list[list[Start]] = self._ask("starts")
        return found

    def close(self) -> None:
        """End the process of the file that is open."""
        self._mine.send_bytes(pickle.dumps(None))
        while pickle.loads(self._mine.recv_bytes())[0] != "gone":
            pass

    def end(self) -> None:
        """No more files."""
        self._mine.close()
        os.waitpid(self._process, 0)

    def _ask(self, what: Any) -> Any:
        self._mine.send_bytes(pickle.dumps(what))
        kind, value = pickle.loads(self._mine.recv_bytes())
        if kind == "gone":
            raise GoneError(value)
        if kind == "refused":
            raise Refused(value)
        return value


def _wait_for_files(pipe: Any, entry: str, *known: Any) -> None:
    """Fork a process for each file that is named, until the other end closes."""
    while True:
        try:
            path = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        child = os.fork()
        if not child:
            try:
                _serve(pipe, Path(path), entry, *known)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        said = f"exit status {code}"
        if code == -signal.SIGALRM:
            said = f"not ended after {TIMEOUT} seconds, is there an endless loop?"
        pipe.send_bytes(pickle.dumps(("gone", said)))


def _serve(
    pipe: Any, path: Path, entry: str, cases: list[Case], seen: list[dict[str, Any]]
) -> None:
    """Load the file, and do what is asked until nothing more is."""

    def answer(work: Callable[[], Any]) -> None:
        signal.alarm(TIMEOUT)
        try:
            kind, value = "done", work()
        except Refused as refused:
            kind, value = "refused", str(refused)
        signal.alarm(0)
        pipe.send_bytes(pickle.dumps((kind, value)))

    for case in cases:
        case.answer = _no_answer
    loaded: list[Entry] = []
    answer(lambda: loaded.append(load_entry(path, entry)))
    while (asked := pickle.loads(pipe.recv_bytes())) is not None:
        if asked == "starts":
            # In a process of its own: what the file keeps from call to call must not hold results that no
            # kernel has stored.
            if looking := os.fork():
                os.waitpid(looking, 0)
                continue
            answer(lambda: starts_of_all(InterpretedFunction, loaded[0], seen, path))
            os._exit(0)
        else:
            number, *how = asked
            with processors_of(number, len(cases)):
                answer(partial(_run, loaded[0], path, cases[number], *how))
    os._exit(0)


def _no_answer() -> Any:
    raise RuntimeError("there is no answer in this process")


def _run(entry: Entry, path: Path, case: Case, how: str, order: str, config: int) -> Ran:
    """The kernel's answer and its log. What it wrote to its inputs is noted in the log, and undone."""
    inputs = case.inputs
    if how == "again":
        assert case.other is not None
        inputs = case.take(case.other())
    whole = case.flip if how == "whole" and case.flip else lambda: None
    CHOICE.number, CHOICE.most = config, 1
    whole()
    before = right.snapshot(case)
    recorder = Recorder(inputs, order, case.flip if how == "flipped" else None)
    with recorder.watching():
        got = call(entry, inputs, path)
    for name, memory in before.items():
        if not torch.equal(memory_of(inputs[name]), memory):
            recorder.overwritten.append(name)
            memory_of(inputs[name]).copy_(memory)
    whole()
    ran = Ran(type(got).__name__, launches=recorder.launches, overwritten=recorder.overwritten)
    ran.configs = CHOICE.most
    if isinstance(got, torch.Tensor):
        ran.got = got.detach().as_subclass(torch.Tensor).clone().contiguous()
        ran.address, ran.strides = got.data_ptr(), got.stride()
        ran.lasts = recorder.lasts(got)
    return ran
