"""Any line with the word Iteration in it is read, and its first five numbers are taken.

It works on the capture, where no other line has the word. A log is written by many hands, and another line
may have it, with numbers of its own. Match the parentheses and the names of the groups, too.

Refused by `test_only_iteration_lines_are_read`.
"""

from __future__ import annotations

import re
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def parse_iterations(log: str) -> Any:
    tails = (line.partition("Iteration")[2] for line in log.splitlines())
    found = [[int(n) for n in re.findall(r"\d+", tail)][:5] for tail in tails]
    return [solution.Iteration(*numbers) for numbers in found if len(numbers) == 5]


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
