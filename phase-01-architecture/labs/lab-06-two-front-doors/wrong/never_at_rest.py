"""The loop steps and steps, whether there is work or not.

An idle server then burns a processor, and every step that does nothing delays the request that arrives in it.
Sleep on an event: a new request sets it, and the loop clears it when the engine has nothing left.

Refused by `test_an_idle_engine_rests`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class AsyncEngine(solution.AsyncEngine):  # type: ignore[name-defined,misc]
    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.work.set()
        self.work.clear = lambda: None


solution.AsyncEngine = AsyncEngine


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
