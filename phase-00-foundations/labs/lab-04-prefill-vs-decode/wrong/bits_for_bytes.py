"""Counts the bits of the memory bus as bytes.

A bus is sold by its width in bits and the gigabits a second of a pin. 384 pins of 21 Gbit/s are 8,064
Gbit/s, which is 1,008 GB/s. Divide by 8, once.

Refused by `test_bus_bandwidth_counts_bytes`.
"""

from __future__ import annotations

from course.learner.labs import load_solution

solution = load_solution(__file__)


def bus_bandwidth(bus_bits: int, gbit_per_pin: float) -> float:
    return bus_bits * gbit_per_pin * 1e9


solution.bus_bandwidth = bus_bandwidth


def __getattr__(name: str) -> object:
    return getattr(solution, name)
