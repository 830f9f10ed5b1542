"""A command on a terminal of its own, typed at by a test. POSIX only."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from course_helpers import ROOT, UNSET

from tests.engine.helpers.patience import PATIENCE

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\]8;[^\x1b]*\x1b\\|\r")


class Terminal:
    """`python -m ARGV` with keyboard and screen; `raw` is all that it wrote."""

    def __init__(self, cwd: Path, *argv: str, lines: int = 50, columns: int = 100) -> None:
        import fcntl
        import pty
        import struct
        import termios

        env = {key: value for key, value in os.environ.items() if key not in UNSET}
        env |= {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        for name in ("NO_COLOR", "FORCE_COLOR", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            env.pop(name, None)
        self.keyboard, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.before = termios.tcgetattr(inner)
        self.process = subprocess.Popen(
            [sys.executable, "-m", *argv], cwd=cwd, env=env, stdin=inner, stdout=inner, stderr=inner,
            start_new_session=True, close_fds=True,
        )  # fmt: skip
        self.inner = inner
        self.raw = ""
        self._at = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.inner)
        os.close(self.keyboard)

    def read_until(self, text: str) -> str:
        """What came since the last call, up to and with `text`, in one line and without colours."""
        end = time.monotonic() + PATIENCE
        while True:
            plain = " ".join(_CONTROL.sub("", self.raw[self._at :]).split())
            if text in plain:
                self._at = len(self.raw)
                return plain
            if time.monotonic() > end or not self._read():
                raise AssertionError(f"{text!r} did not come:\n{plain}")

    def _read(self) -> bool:
        """Whether there may be more to come."""
        if select.select([self.keyboard], [], [], 0.1)[0]:
            try:
                self.raw += os.read(self.keyboard, 65536).decode("utf-8", "replace")
            except OSError:  # Linux, when nobody has the other end open any more
                return False
            return True
        return self.process.poll() is None

    def types(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    def interrupts(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def ends(self) -> int:
        """The exit status."""
        while self.process.poll() is None:
            self._read()
        return self.process.returncode

    @property
    def modes(self) -> list[object]:
        """How the terminal handles keys: the same before and after, or the shell is left mute."""
        import termios

        return list(termios.tcgetattr(self.inner))
