"""Percentiles of a stream in memory that does not grow with it."""

from __future__ import annotations

import math

RELATIVE_ERROR = 0.005
"""A percentile is off by at most half a percent of its value."""
_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_LOG = 1 / math.log(_GAMMA)


class Sketch:
    """Counts of non-negative numbers in buckets whose bounds grow by 1 % each.

    A bucket's middle is within `RELATIVE_ERROR` of whatever fell into it, so a percentile is too.
    From a microsecond to a day there are 2,516 buckets, and only those in use are kept. Count, mean,
    standard deviation, least and greatest are exact but for rounding.

    The idea is DDSketch's (Masson, Rim and Lee, VLDB 2019), without its merging of buckets.
    """

    __slots__ = ("_buckets", "_squares", "count", "greatest", "least", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._squares = 0.0
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.greatest = -math.inf

    def add(self, value: float, times: int = 1) -> None:
        """Count `value`, at least 0, so many times."""
        # What is not above a picosecond counts as 0, in the bucket of its own, the lowest.
        bucket = math.ceil(math.log(value) * _PER_LOG) if value > 1e-12 else -1_000_000
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += times
        self.total += value * times
        self._squares += value * value * times
        if value < self.least:
            self.least = value
        if value > self.greatest:
            self.greatest = value

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """The population's, as `numpy.std` has it."""
        if not self.count:
            return 0.0
        return math.sqrt(max(self._squares / self.count - self.mean**2, 0.0))

    def percentile(self, p: float) -> float:
        """The `p`-th percentile, between neighbours as `numpy.percentile` does; 0.0 if empty."""
        if not self.count:
            return 0.0
        rank = p / 100 * (self.count - 1)
        low, high = self._at(math.floor(rank)), self._at(math.ceil(rank))
        return low + (high - low) * (rank - math.floor(rank))

    def _at(self, rank: int) -> float:
        """The value at a rank from 0, by its bucket."""
        for bucket in sorted(self._buckets):
            rank -= self._buckets[bucket]
            if rank < 0:
                break
        middle = 2 * _GAMMA**bucket / (1 + _GAMMA) if bucket > -1_000_000 else 0.0
        return min(max(middle, self.least), self.greatest)
