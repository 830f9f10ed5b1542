"""Lab 05-03: the best list of sizes, which the lab gives for its exploration, is the best one."""

from __future__ import annotations

import random

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-05-cuda-graphs/labs/lab-03-capture-sizes"
support = load_module(LAB / "support.py", "test_lab_05_03_support")
HARD = [25, 22, 24, 12, 3, 15, 22, 17, 4, 25, 6, 17]


def padding(steps: list[int], sizes: list[int]) -> int:
    return sum(next(size for size in sizes if size >= n) - n for n in steps)


def test_no_list_pads_less() -> None:
    """Against all sets of sizes, on thirty draws, and a case in which taking the best one by one fails."""
    rng = random.Random(5)
    cases = [(HARD, 7), ([1] * 200 + [2] * 30 + [60] * 3 + [100], 3)]
    for _ in range(30):
        cases.append(([rng.randint(1, 60) for _ in range(rng.randint(1, 12))], rng.randint(1, 7)))
    for steps, n in cases:
        sizes = support.best_sizes(steps, n)
        assert sizes == sorted(set(sizes))
        assert len(sizes) <= n
        assert padding(steps, sizes) == support.least_padding(steps, n), (steps, n)


def test_the_night_and_what_is_refused() -> None:
    steps = [n for n in support.night() if n <= 512]
    assert padding(steps, support.best_sizes(steps, 16)) == 4555
    assert support.best_sizes([], 3) == []
    with pytest.raises(ValueError, match="-2"):
        support.best_sizes([1, 2], -2)
