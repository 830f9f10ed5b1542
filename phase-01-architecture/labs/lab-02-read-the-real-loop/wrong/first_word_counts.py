"""The first "Asynchronous scheduling is ..." line is believed.

It is the front end's, which resolves the default before the platform has had its say. On a CPU a second line
takes it back. Where a setting is reported more than once, the last report is what runs.

Refused by `test_the_last_word_counts`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def parse_startup(log: str) -> Any:
    first = solution.re.findall(r"Asynchronous scheduling is (\w+)", log)[:1]
    return solution.parse_startup(log)._replace(async_scheduling=first == ["enabled"])


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
