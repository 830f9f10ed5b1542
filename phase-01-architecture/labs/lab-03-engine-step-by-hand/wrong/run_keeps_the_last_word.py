"""`run` keeps the newest output of each request, finished or not.

For those who finish that is the same. A client that leaves has had outputs, too, and shows up in the result
with half an answer that nobody may take for a whole one. Keep an output when it says `finished`.

Refused by `test_run_ends_though_a_client_leaves`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def run(self: Any) -> Any:
    newest: dict[str, Any] = {}
    while self.has_unfinished_requests():
        for output in self.step():
            newest[output.request_id] = output
    return newest


solution.HandEngine.run = run


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
