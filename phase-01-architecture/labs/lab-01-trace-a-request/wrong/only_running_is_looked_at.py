"""After a step only `scheduler.running` is looked at, so nobody is ever seen to finish.

The update takes a finished request out of `running` before `step()` returns. Its last event, the one you
want most, is the one that is missing. Remember who was alive before the step, and hold the objects. Whoever
waits or was preempted is not in `running` either.

Refused by `test_decode_grows_by_one`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class Tracer(solution.Tracer):  # type: ignore[name-defined, misc]
    def step(self) -> Any:
        num_events = len(self.events)
        outputs = super().step()
        running = {r.request_id for r in self.engine.engine_core.scheduler.running}
        self.events[num_events:] = [e for e in self.events[num_events:] if e.request_id in running]
        return outputs


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
