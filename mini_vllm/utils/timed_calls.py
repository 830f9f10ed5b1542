"""Calls that may take for ever and cannot be stopped, such as a library's that is written in C.

A call has so many seconds. Past them its future fails, so that nothing waits any longer, and its thread is
given up: it runs on until the call returns, and another call has its place. Only so many are given up at a
time; until one of them returns, no call begins and all that wait fail.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class _Call:
    work: Callable[[], Any]
    too_long: Exception
    future: Future[Any] = field(default_factory=Future)
    is_given_up: bool = False


class TimedCalls:
    """Makes calls in daemon threads, which keep no process from its end.

    Args:
        threads: most calls at a time, without those that were given up.
        seconds: how long a call may take.
        most_given_up: most calls that were given up and have not returned.
        name: of the threads.
    """

    def __init__(self, threads: int, seconds: float, most_given_up: int, name: str) -> None:
        self.seconds = seconds
        self._threads = threads
        self._most_given_up = most_given_up
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._running = 0
        self._given_up = 0

    def submit(self, work: Callable[[], T], too_long: Exception) -> Future[T]:
        """Call `work` in a thread.

        Args:
            too_long: what the future fails with where the call takes too long, or may not begin.
        """
        call = _Call(work, too_long)
        with self._lock:
            self._waiting.append(call)
        self._begin()
        return call.future

    def shutdown(self) -> None:
        """Cancel what waits. What runs is left alone."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.future.cancel()

    def _begin(self) -> None:
        """Start what there is room for."""
        refused: deque[_Call] = deque()
        with self._lock:
            while self._waiting and self._running < self._threads:
                if self._given_up >= self._most_given_up:
                    refused, self._waiting = self._waiting, deque()
                    break
                call = self._waiting.popleft()
                if call.future.set_running_or_notify_cancel():
                    self._running += 1
                    threading.Thread(
                        target=self._run, args=[call], name=self._name, daemon=True
                    ).start()
        for call in refused:
            _fail(call.future, call.too_long)

    def _run(self, call: _Call) -> None:
        timer = threading.Timer(self.seconds, self._give_up, [call])
        timer.daemon = True
        timer.start()
        try:
            result = call.work()
        except BaseException as error:  # what a library written in Rust raises is no Exception
            _fail(call.future, error)
        else:
            with contextlib.suppress(InvalidStateError):
                call.future.set_result(result)
        timer.cancel()
        with self._lock:
            if call.is_given_up:
                self._given_up -= 1
            else:
                self._running -= 1
        self._begin()

    def _give_up(self, call: _Call) -> None:
        with self._lock:
            if call.future.done():
                return
            call.is_given_up = True
            self._running -= 1
            self._given_up += 1
        _fail(call.future, call.too_long)
        self._begin()


def _fail(future: Future[Any], error: BaseException) -> None:
    with contextlib.suppress(InvalidStateError):  # it was given up, or its caller left
        future.set_exception(error)
