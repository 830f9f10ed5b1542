"""How a command of the course begins and ends: an error, a full disk and Ctrl-C are one line each.

`course` and `python -m course.…` go through it. Nothing is imported at its top, so that Ctrl-C while the rest
loads ends in one line too.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing takes 20 ms, in which Ctrl-C would end in a traceback
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

INTERRUPTED = 130


def guarded(name: str, run: Callable[[], int]) -> int:
    """The exit status of `run`: 2 where what it prints cannot be written, 130 for Ctrl-C.

    A reader that has seen enough (`| head`) is no error. `name` begins the line that says why.
    """
    try:
        from mini_vllm.utils.interrupt import AtOnce

        with AtOnce(name):
            from mini_vllm.entrypoints.cli.errors import describe, drop, is_interrupt, reader_left
        try:
            status = run()
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            _drop(sys.stdout, drop)
            if reader_left(error):
                return 0
            _say(f"{name}: {describe(error)}", drop)
            return 2
        except (ImportError, RuntimeError, SystemError) as error:
            if not is_interrupt(error):
                raise
            status = INTERRUPTED
    except KeyboardInterrupt:
        status = INTERRUPTED
    if status == INTERRUPTED:
        print(f"{name}: interrupted", file=sys.stderr)
    return status


def _drop(stream: TextIO | None, drop: Callable[[TextIO], None]) -> None:
    if stream is not None:
        drop(stream)


def _say(line: str, drop: Callable[[TextIO], None]) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr, drop)


def run_module(module: str, function: str, extra: str = "course") -> int:
    """The exit status of `python -m PACKAGE`, whose command is a function of one of its modules.

    `extra` has the packages that the module imports; where one is missing, it is named.
    """
    name = module.rsplit(".", 1)[0]

    def run() -> int:
        import importlib

        from mini_vllm.utils.interrupt import AtOnce

        try:
            with AtOnce(name):
                command = getattr(importlib.import_module(module), function)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in ("", "course", "mini_vllm"):
                raise
            from mini_vllm.utils.extras import how_to_get

            print(f"{name} needs {error.name}: {how_to_get(extra)}", file=sys.stderr)
            return 2
        try:
            return int(command() or 0)
        except SystemExit as stop:
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)

    return guarded(name, run)
