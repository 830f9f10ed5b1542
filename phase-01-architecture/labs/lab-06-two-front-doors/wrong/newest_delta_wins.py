"""A new output replaces the one that was not read yet, and its tokens are gone.

With cumulative outputs that would be right: the newer one says it all. A delta says only what is new.
Merge the two.

Refused by `test_the_collector_merges_what_was_not_taken`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class OutputCollector(solution.OutputCollector):  # type: ignore[name-defined,misc]
    def put(self, output: Any) -> None:
        self.output = output
        self.ready.set()


solution.OutputCollector = OutputCollector


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
