"""A clock for a machine whose speed drifts: it goes slower when the machine does.

A core shared with a neighbour, or one that changes its frequency, may do the same work in 3 ms now
and in 5 ms a second later. Two things timed a minute apart are not comparable then. So between what
is timed, a small fixed piece of work is, and the clock's rate is set so that this piece always takes
as long as it did at the start. The pieces themselves take no time on this clock.

What it shows are seconds of the machine as it was at the start. It helps as far as the piece, which is
interpreter and small matrices as an engine's step is, suffers as the step does.
"""

from __future__ import annotations

import statistics
import time
from collections import deque

import numpy as np

RECENT = 5
"""The rate follows the median of so many pieces, because one alone may meet an interrupt."""


class SteadyClock:
    """Call it for the time in seconds; call `tick` between the things that are timed.

    Attributes:
        rates: the rate after each tick; 1 is the machine's speed at the start.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._x = rng.standard_normal((32, 64)).astype(np.float32)
        self._w = rng.standard_normal((64, 64)).astype(np.float32) / 8
        for _ in range(50):
            self._piece()
        self._usual = statistics.median(self._piece() for _ in range(200))
        self._recent: deque[float] = deque(maxlen=RECENT)
        self.rates: list[float] = []
        self._rate = 1.0
        self._shown = 0.0
        self._since = time.perf_counter()

    def __call__(self) -> float:
        return self._shown + (time.perf_counter() - self._since) * self._rate

    def tick(self) -> None:
        """Do the piece of work, about half a millisecond, and set the rate by what it took."""
        self._shown = self()
        self._recent.append(self._piece())
        self._rate = self._usual / statistics.median(self._recent)
        self.rates.append(self._rate)
        self._since = time.perf_counter()

    def rescale(self, factor: float) -> None:
        """Count `factor` times as many seconds from now on."""
        self._shown = self()
        self._since = time.perf_counter()
        self._usual *= factor
        self._rate *= factor

    def _piece(self) -> float:
        start = time.perf_counter()
        x = self._x
        for _ in range(30):
            x = np.maximum(x @ self._w, 0) * np.float32(0.5)
        seen: dict[int, int] = {}
        for i in range(2500):
            seen[i & 255] = i
        return time.perf_counter() - start
