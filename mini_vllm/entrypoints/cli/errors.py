"""How a command begins and ends: flags that are refused, errors and Ctrl-C, one line each.

Exit status: what the command says (0 done, 1 some prompt refused), 2 for what could not be done, 130
for Ctrl-C, as shells have it (128 + SIGINT).
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TextIO

from mini_vllm.utils.interrupt import INTERRUPTED
from mini_vllm.utils.untrusted import one_line, shorten_repr

_PATHS = ("MODEL", "FILE", "DIR", "OUT")  # the metavars of what names one
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
EPILOG = """\
examples:
  mini-vllm generate "The scheduler"
  mini-vllm generate "A block table" "Chunked prefill" --max-tokens 80 --json
  mini-vllm generate --prompts-file prompts.txt --temperature 0.8 --seed 1 --n 2
  mini-vllm generate --mine "The scheduler"
  mini-vllm generate "Prefix caching" "Prefix hits" --num-gpu-blocks 30 --trace run.html
  mini-vllm trace run.html -o -
  mini-vllm bench --num-prompts 64 --input-len 64 --output-len 128
  mini-vllm simulate --num-prompts 2000 --request-rate 12 --input-len 500 --output-len 200
  mini-vllm sweep --set max-num-batched-tokens=512,2048 --set request-rate=8,12 --json rows.jsonl
  mini-vllm quantize --method int4-g128 mini_vllm/checkpoints/tiny-llama tiny-int4
"""


class Parser(argparse.ArgumentParser):
    """argparse, but a refusal is one line that names the command and where its help is."""

    def error(self, message: str) -> NoReturn:
        print_error(f"{message} (see {self.prog} --help)")
        self.exit(2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """An empty path would mean the folder one stands in, and an empty model the default one."""
        super()._check_value(action, value)
        if value == "" and action.metavar in _PATHS:
            raise argparse.ArgumentError(action, "must not be empty")

    def _print_message(self, message: str, file: Any = None) -> None:
        """argparse's own drops the error of a full disk, and the command would seem to have said all."""
        if message and (file := file or sys.stderr) is not None:
            file.write(message)


def print_error(message: str) -> None:
    """A line on standard error, with the command's name in front; where that is full, nothing."""
    if sys.stderr is None:
        return
    try:
        print(f"mini-vllm: {one_line(message)}", file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)


def guarded(run: Callable[[TextIO], int]) -> int:
    """The exit status of `run`, called with standard output.

    An error that names what was wrong (ValueError, TypeError, OSError), too little memory and Ctrl-C
    become one line. Anything else is a fault of ours and keeps its traceback. SystemExit, with which argparse
    ends, goes on once all that was printed is written.
    """
    if sys.stdout is None:  # the shell has closed it: `>&-`
        with Path(os.devnull).open("w", encoding="utf-8") as sys.stdout:
            return guarded(run)
    out = sys.stdout
    try:
        try:
            status = run(out)
        except SystemExit:
            out.flush()
            raise
        out.flush()
        return status
    except (KeyboardInterrupt, ImportError, RuntimeError, SystemError) as error:
        if not is_interrupt(error):
            raise
        if out.isatty():
            out.write("\n")  # the terminal's line ends in text, and in ^C
        print_error("interrupted")
        return INTERRUPTED
    except MemoryError as error:
        print_error(
            f"there is not enough memory: {error}" if str(error) else "there is not enough memory"
        )
        return 2
    except UnicodeEncodeError as error:
        odd = error.object[error.start : error.end]
        print_error(
            f"standard output is {error.encoding} and cannot take {shorten_repr(odd)}: set PYTHONUTF8=1"
        )
        return 2
    except (ValueError, TypeError, OSError) as error:
        if isinstance(error, OSError):
            drop(out)
            if reader_left(error):
                return 0
        print_error(describe(error) if isinstance(error, OSError) else str(error))
        return 2


def describe(error: OSError) -> str:
    """What the system says, and of a full disk what for."""
    if error.errno in _FULL and error.filename is None:
        return f"the output cannot be written: {error.strerror}"
    return str(error)


def reader_left(error: OSError) -> bool:
    """Whether the reader of a pipe has seen enough. Windows then calls the write an invalid argument."""
    nobody_reads = os.name == "nt" and error.errno == errno.EINVAL and error.filename is None
    return nobody_reads or isinstance(error, BrokenPipeError)


def is_interrupt(error: BaseException | None) -> bool:
    """Ctrl-C, or what became of it while modules load: numpy makes an ImportError of it, Python 3.11 a
    RuntimeError where a class is being made, C code a SystemError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def drop(out: TextIO) -> None:
    """Let what is still to be written go nowhere: Python writes it at its end, and would complain."""
    try:
        out.flush()
    except OSError:
        with contextlib.suppress(
            OSError
        ):  # a stream without a file, which has nothing to write then
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
            out.flush()
