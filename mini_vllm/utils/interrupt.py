"""Ctrl-C while a command loads."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130  # as shells have it: 128 + SIGINT


class AtOnce:
    """While it holds, Ctrl-C ends the process with one line on standard error and status 130.

    For the time in which modules are imported and nothing else has begun. A KeyboardInterrupt is not enough
    there: numpy's compiled part makes another error of it, and Python's importer drops one that comes in a
    callback. Another handler than Python's own, and a thread that may set none, are left alone.

    Args:
        command: what the line begins with.
    """

    def __init__(self, command: str) -> None:
        self._line = f"{command}: interrupted\n".encode()

    def __enter__(self) -> AtOnce:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._set(self._end)
        return self

    def __exit__(self, *error: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._end:
            self._set(signal.default_int_handler)

    def _set(self, handler: object) -> None:
        try:
            signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]
        except ValueError:  # not in the main thread
            return

    def _end(self, number: int, frame: FrameType | None) -> None:
        try:
            if os.isatty(1):
                os.write(1, b"\n")  # the terminal's line ends in ^C
            os.write(2, self._line)
        finally:
            os._exit(INTERRUPTED)
