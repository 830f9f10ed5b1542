"""A bar for the terminal, called as tqdm is."""

from __future__ import annotations

import sys
import time


class ProgressBar:
    """As much of tqdm as `generate` needs; says nothing where stderr is not a terminal."""

    def __init__(self, total: int, desc: str) -> None:
        self.total, self.desc, self.n = total, desc, 0
        self._start = time.perf_counter()
        self._shown = sys.stderr.isatty()

    def update(self, count: int) -> None:
        self.n += count
        if self._shown:
            rate = self.n / max(time.perf_counter() - self._start, 1e-9)
            filled = 24 * self.n // max(self.total, 1)
            sys.stderr.write(
                f"\r{self.desc}: {'#' * filled:<24} {self.n}/{self.total} {rate:.1f} prompts/s "
            )
            sys.stderr.flush()

    def close(self) -> None:
        if self._shown:
            sys.stderr.write("\n")
