"""A bar on the terminal while weights are read. vLLM's is tqdm's
(`vllm/model_executor/model_loader/weight_utils.py:893 safetensors_weights_iterator`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

SHOWN_FROM = 200 * 2**20
"""Bytes; less is there before one could read it."""
_WIDTH = 30


def loading_bar(total: int) -> Callable[[int, int], None] | None:
    """What to call with the bytes read and those of all; None where nothing should be shown.

    It draws on standard error, a few times a second, if that is a terminal.
    """
    if total < SHOWN_FROM or sys.stderr is None or not sys.stderr.isatty():
        return None
    last, ended = 0.0, False

    def show(done: int, of: int) -> None:
        nonlocal last, ended
        now = time.monotonic()
        if ended or (done < of and now - last < 0.1):
            return
        last, ended = now, done >= of
        filled = _WIDTH * done // of
        line = f"\rloading [{'#' * filled}{' ' * (_WIDTH - filled)}] {done >> 20:,} of {of >> 20:,} MiB"
        sys.stderr.write(line + ("\n" if ended else ""))
        sys.stderr.flush()

    return show
