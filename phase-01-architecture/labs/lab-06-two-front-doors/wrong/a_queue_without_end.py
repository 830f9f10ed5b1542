"""Every output waits in a queue of its own, as many as there are steps.

It works as long as everybody reads. A client that has stopped reading, and there is always one, makes the
queue grow with every step. Keep one output and merge what comes later into it: the tokens are the same, and
there is a limit, the request's own answer.

Refused by `test_the_collector_merges_what_was_not_taken`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class OutputCollector(solution.OutputCollector):  # type: ignore[name-defined,misc]
    def __init__(self) -> None:
        super().__init__()
        self.queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, output: Any) -> None:
        self.queue.put_nowait(output)

    async def get(self) -> Any:
        output = await self.queue.get()
        if isinstance(output, Exception):
            raise output
        return output


solution.OutputCollector = OutputCollector


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
