"""The ridge point is bytes per FLOP instead of FLOP per byte.

Check the unit: an intensity is FLOP/byte, and a ridge is compared with one. FLOP/s over bytes/s leaves
FLOP/byte. For a GPU of today the number is a few hundred, not a few thousandths.

Refused by `test_ridge_point`.
"""

from __future__ import annotations

from course.learner.labs import load_solution

solution = load_solution(__file__)


def ridge_point(device):  # type: ignore[no-untyped-def]
    return device.bandwidth / device.flops


solution.ridge_point = ridge_point


def __getattr__(name: str) -> object:
    return getattr(solution, name)
