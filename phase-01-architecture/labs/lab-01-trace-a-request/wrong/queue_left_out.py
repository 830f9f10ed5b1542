"""Events are written for scheduled requests only; whoever waits has none.

A request in the queue lives, and its user waits. Without its events a preemption is not to be seen, and the
time in the queue looks like nothing. Each living request has an event in each step: the scheduled ones, the
rest of `running`, the queue.

Refused by `test_waiting_shows_every_step`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class Tracer(solution.Tracer):  # type: ignore[name-defined, misc]
    def step(self) -> Any:
        num_events = len(self.events)
        outputs = super().step()
        self.events[num_events:] = [
            e for e in self.events[num_events:] if e.num_scheduled_tokens > 0
        ]
        return outputs


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
