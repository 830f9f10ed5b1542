"""The idle loop sleeps a hundredth of a second, looks for work, and sleeps again.

It takes no step, so it seems to rest. But it wakes a hundred times a second for nothing, and the next
request waits for the rest of a sleep. `await work.wait()` costs nothing, and wakes at once.

Refused by `test_an_idle_engine_sleeps_on_its_event`.
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
                while not self.work.is_set():
                    await asyncio.sleep(0.01)
                async with self.engine_lock:
                    if self.error is not None:
                        break
                    self.abort_leavers()
                    self.deliver(await asyncio.to_thread(self.engine.step))
                    if not self.engine.has_unfinished_requests():
                        self.work.clear()
        except Exception as cause:
            self.error = EngineDeadError(f"the engine died: {cause!r}")
            self.error.__cause__ = cause
        for collector in self.collectors.values():
            collector.put(self.error)


solution.AsyncEngine = AsyncEngine


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
