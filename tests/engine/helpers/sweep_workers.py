"""What a sweep's workers do in tests: they die, or wait, at places that the test chooses.

Workers import this module, and ask the folder `SWEEP_MARKS` what has happened before.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

MARKS = "SWEEP_MARKS"
DIES_ONCE, DIES_ALWAYS = 101, 102
"""Numbers of prompts."""


def die() -> None:
    """As one that the system kills for its memory: without a word."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    threading.Event().wait()


def run_point_or_die(point: Any) -> str:
    """`run_point`, but two numbers of prompts kill the process: one the first time, the other each time."""
    from mini_vllm.entrypoints.cli.sweep_point import run_point  # the other workers need none of it

    prompts = point.settings["num_prompts"]
    tries = Path(os.environ[MARKS]) / str(prompts)
    with tries.open("a", encoding="utf-8") as file:
        file.write("x")
    if prompts == DIES_ALWAYS or (prompts == DIES_ONCE and tries.stat().st_size == 1):
        die()
    return run_point(point)


def double_or_die(number: int) -> str:
    """Twice the number; 3 kills the process the first time, 4 each time."""
    tries = Path(os.environ[MARKS]) / str(number)
    with tries.open("a", encoding="utf-8") as file:
        file.write("x")
    if number == 4 or (number == 3 and tries.stat().st_size == 1):
        die()
    return str(2 * number)


def say_and_wait(text: str) -> str:
    """Says it has begun, and never ends."""
    print(text, flush=True)
    threading.Event().wait()
    return ""
