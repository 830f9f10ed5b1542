"""How long a test waits for what must happen.

It waits for the event, so a fast machine loses nothing. This only ends a test that would hang, and a machine
with fifteen other processes on two cores must not come near it.
"""

import time

PATIENCE = 600.0
"""Seconds."""

YARDSTICK = 0.2
"""Seconds of processor time that `measure_slowness` takes on a current laptop."""


def measure_slowness() -> float:
    """How many times as long as on a current laptop a fixed piece of Python takes just now (`.ci/run` has the
    same one)."""
    start, total = time.process_time(), 0
    for number in range(5_000_000):
        total += number
    return (time.process_time() - start) / YARDSTICK
