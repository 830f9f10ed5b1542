"""The event is written before the engine has accepted the request.

An id that is taken, an empty prompt, a request too large for the cache: the engine refuses with a ValueError.
By then a request that does not exist has an event. Call the engine first; what comes after it happens only if
it agreed.

Refused by `test_a_refused_request_leaves_no_trace`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


class Tracer(solution.Tracer):  # type: ignore[name-defined, misc]
    def add_request(self, request_id: str, prompt: Any, params: Any, priority: int = 0) -> None:
        num_events = len(self.events)
        blank = solution.Event(self.num_steps, request_id, "WAITING", 0, 0, 0, 0, 0, (), (), None)
        self.events.append(blank)
        super().add_request(request_id, prompt, params, priority)
        del self.events[num_events]


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
