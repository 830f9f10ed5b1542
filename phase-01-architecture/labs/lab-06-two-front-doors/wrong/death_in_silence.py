"""A step raises, the task that steps ends with it, and every reader waits for ever.

An exception in a task goes nowhere until somebody awaits the task. Nobody does: the readers wait for their
collectors. Catch it there, remember it for who comes later, and put it into every collector.

Refused by `test_a_dying_step_ends_every_stream`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class AsyncEngine(solution.AsyncEngine):  # type: ignore[name-defined,misc]
    async def run_engine(self) -> None:
        while self.error is None:
            await self.work.wait()
            async with self.engine_lock:
                self.abort_leavers()
                self.deliver(await asyncio.to_thread(self.engine.step))
                if not self.engine.has_unfinished_requests():
                    self.work.clear()
        for collector in self.collectors.values():
            collector.put(self.error)


solution.AsyncEngine = AsyncEngine


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
