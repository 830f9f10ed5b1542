"""What the reader has taken stays in the collector, and later deltas are merged into it.

The reader holds the same object: its past changes under its hands, and the next `get` brings the old tokens
once more. Taking an output means to leave None in its place.

Refused by `test_streams_joined_are_the_batch_outputs`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class OutputCollector(solution.OutputCollector):  # type: ignore[name-defined,misc]
    async def get(self) -> Any:
        await self.ready.wait()
        self.ready.clear()
        if isinstance(self.output, Exception):
            raise self.output
        return self.output


solution.OutputCollector = OutputCollector


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
