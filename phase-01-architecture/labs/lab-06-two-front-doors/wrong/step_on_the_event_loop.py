"""The engine steps on the event loop, and while it does, nothing else happens in the whole server.

`async def` makes nothing run beside anything else: between two awaits the loop is yours alone. A step of
50 ms is 50 ms in which no request is accepted and no token is sent. Give the step to a thread:
`await asyncio.to_thread(self.engine.step)`.

Refused by `test_the_event_loop_runs_during_a_step`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from course.learner.labs import load_solution
from mini_vllm.engine import EngineDeadError

solution = load_solution(__file__)


class AsyncEngine(solution.AsyncEngine):  # type: ignore[name-defined,misc]
    async def run_engine(self) -> None:
        try:
            while self.error is None:
                await self.work.wait()
                async with self.engine_lock:
                    self.abort_leavers()
                    self.deliver(self.engine.step())
                    if not self.engine.has_unfinished_requests():
                        self.work.clear()
                await asyncio.sleep(0)
        except Exception as cause:
            self.error = EngineDeadError(f"the engine died: {cause!r}")
            self.error.__cause__ = cause
        for collector in self.collectors.values():
            collector.put(self.error)


solution.AsyncEngine = AsyncEngine


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
