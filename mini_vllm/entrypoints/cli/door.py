"""How a command begins and ends: flags that are refused, errors and Ctrl-C, one line each.

Exit status: what the command says (0 done, 1 some prompt refused), 2 for what could not be done, 130
for Ctrl-C, as shells have it (128 + SIGINT).
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TextIO

from mini_vllm.utils.outside import one_line, short

INTERRUPTED = 130
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
  mini-vllm quantize --method int4-g128 mini_vllm/checkpoints/tiny-llama tiny-int4
"""


class Parser(argparse.ArgumentParser):
    """argparse, but a refusal is one line that names the command and where its help is."""

    def error(self, message: str) -> NoReturn:
        say(f"{message} (see {self.prog} --help)")
        self.exit(2)


def say(message: str) -> None:
    """A line on standard error, with the command's name in front."""
    if sys.stderr is not None:
        print(f"mini-vllm: {one_line(message)}", file=sys.stderr)


def guarded(run: Callable[[TextIO], int]) -> int:
    """The exit status of `run`, called with standard output.

    An error that names what was wrong (ValueError, TypeError, OSError), too little memory and Ctrl-C
    become one line. Anything else is a fault of ours and keeps its traceback.
    """
    if sys.stdout is None:  # the shell has closed it: `>&-`
        with Path(os.devnull).open("w", encoding="utf-8") as sys.stdout:
            return guarded(run)
    out = sys.stdout
    try:
        status = run(out)
        out.flush()
        return status
    except (KeyboardInterrupt, ImportError) as error:
        if not is_interrupt(error):
            raise
        if out.isatty():
            out.write("\n")  # the terminal's line ends in text, and in ^C
        say("interrupted")
        return INTERRUPTED
    except MemoryError as error:
        say(f"there is not enough memory: {error}" if str(error) else "there is not enough memory")
        return 2
    except UnicodeEncodeError as error:
        odd = error.object[error.start : error.end]
        say(f"standard output is {error.encoding} and cannot take {short(odd)}: set PYTHONUTF8=1")
        return 2
    except (ValueError, TypeError, OSError) as error:
        if isinstance(error, OSError):
            drop(out)
            if reader_left(error):
                return 0
        say(str(error))
        return 2


def reader_left(error: OSError) -> bool:
    """Whether the reader of a pipe has seen enough. Windows then calls the write an invalid argument."""
    nobody_reads = os.name == "nt" and error.errno == errno.EINVAL and error.filename is None
    return nobody_reads or isinstance(error, BrokenPipeError)


def is_interrupt(error: BaseException | None) -> bool:
    """Ctrl-C, or what became of it: numpy makes an ImportError of one that comes while it loads."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def drop(out: TextIO) -> None:
    """Let what is still to be written go nowhere: Python writes it at its end, and would complain."""
    try:
        out.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        out.flush()
