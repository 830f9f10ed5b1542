"""Calls with a limit of time, in threads that cannot be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, ClassVar

import pytest

from mini_vllm.utils import timed_calls
from mini_vllm.utils.timed_calls import TimedCalls
from tests.engine.helpers.patience import PATIENCE

LATE = ValueError("too late")


def fail() -> None:
    raise KeyError("x")


def test_a_call_returns_or_fails_as_it_does() -> None:
    calls = TimedCalls(2, PATIENCE, 1, "test")
    assert [calls.submit(lambda: 5, LATE).result(PATIENCE) for _ in range(5)] == [5] * 5
    with pytest.raises(KeyError):
        calls.submit(fail, LATE).result(PATIENCE)


def test_calls_wait_for_a_thread() -> None:
    calls, go = TimedCalls(1, PATIENCE, 1, "test"), threading.Event()
    first = calls.submit(lambda: go.wait(PATIENCE), LATE)
    second = calls.submit(lambda: 2, LATE)
    assert not second.running()
    assert not second.done()
    go.set()
    assert first.result(PATIENCE)
    assert second.result(PATIENCE) == 2


class Timer:
    """Runs out when it is told to."""

    started: ClassVar[list[Timer]] = []

    def __init__(self, seconds: float, function: Callable[..., None], args: list[Any]) -> None:
        self.daemon = False
        self.run_out = lambda: function(*args)

    def start(self) -> None:
        self.started.append(self)

    def cancel(self) -> None:
        pass


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[Timer]:
    monkeypatch.setattr(timed_calls.threading, "Timer", Timer)
    monkeypatch.setattr(Timer, "started", [])
    return Timer.started


def test_one_that_takes_too_long_gives_up_its_place(timers: list[Timer]) -> None:
    calls, go, begun = TimedCalls(1, 5, 2, "test"), threading.Event(), threading.Event()
    slow = calls.submit(lambda: begun.set() or go.wait(PATIENCE), LATE)
    next_one = calls.submit(lambda: 2, LATE)
    assert begun.wait(PATIENCE)
    assert not next_one.done()
    timers[0].run_out()
    with pytest.raises(ValueError, match="too late"):
        slow.result(PATIENCE)
    assert next_one.result(PATIENCE) == 2
    go.set()


def test_while_too_many_were_given_up_no_call_begins(timers: list[Timer]) -> None:
    calls, go, begun = (
        TimedCalls(1, 5, 1, "test of giving up"),
        threading.Event(),
        threading.Event(),
    )
    calls.submit(lambda: begun.set() or go.wait(PATIENCE), LATE)
    waiting = calls.submit(lambda: 2, LATE)
    assert begun.wait(PATIENCE)
    timers[0].run_out()
    for refused in (waiting, calls.submit(lambda: 2, LATE)):
        with pytest.raises(ValueError, match="too late"):
            refused.result(PATIENCE)
    assert len(timers) == 1, "none of them began"
    go.set()
    thread = next(one for one in threading.enumerate() if one.name == "test of giving up")
    thread.join(PATIENCE)
    assert calls.submit(lambda: 3, LATE).result(PATIENCE) == 3


def test_after_a_shutdown_what_waits_is_cancelled() -> None:
    calls, go = TimedCalls(1, PATIENCE, 1, "test"), threading.Event()
    first = calls.submit(lambda: go.wait(PATIENCE), LATE)
    second = calls.submit(lambda: 2, LATE)
    calls.shutdown()
    with pytest.raises(CancelledError):
        second.result(PATIENCE)
    go.set()
    assert first.result(PATIENCE)
