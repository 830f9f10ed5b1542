"""On PYTHONPATH, this takes from a Python of Linux or macOS what Windows' lacks, before anything else runs.

Modules are refused to all but the standard library, which has chosen its own for this system. Paths, files
that are open and consoles stay as they are.
"""

from __future__ import annotations

import builtins
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

GONE = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "termios", "tty", "uvloop"}
GONE_OF_OS = (
    "fork forkpty getloadavg getpgid killpg mkfifo nice sched_getaffinity sched_setaffinity setpgid setsid "
    "sysconf sysconf_names wait"
)
GONE_OF_SIGNAL = (
    "SIGALRM SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 alarm pause pthread_kill setitimer sigwait"
)
_OWN = str(Path(os.__file__).parent)
_import, _find_spec = builtins.__import__, importlib.util.find_spec


def import_(name: str, globals: Any = None, *rest: Any, **more: Any) -> ModuleType:
    file = (globals or {}).get("__file__") or ""
    if name in GONE and (not file.startswith(_OWN) or "site-packages" in file):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return _import(name, globals, *rest, **more)


def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
    return None if name in GONE else _find_spec(name, package)


def locking(file: int, mode: int, nbytes: int) -> None:
    """Windows' lock, made of this system's."""
    _fcntl.lockf(file, _fcntl.LOCK_EX, nbytes)


_fcntl = _import("fcntl")
builtins.__import__ = import_  # type: ignore[assignment]
importlib.util.find_spec = find_spec
subprocess.Popen.kill = lambda self: self.send_signal(9)  # type: ignore[method-assign]
for module, names in ((os, GONE_OF_OS), (signal, GONE_OF_SIGNAL)):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
msvcrt: Any = ModuleType("msvcrt")
msvcrt.LK_LOCK, msvcrt.locking = 1, locking
sys.modules["msvcrt"] = msvcrt
multiprocessing.set_start_method("spawn", force=True)
