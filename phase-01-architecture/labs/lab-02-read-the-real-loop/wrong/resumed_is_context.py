"""A preempted request counts as context again when it is back.

It computes much of its prompt anew, so it looks like a prefill. The log line does not go by that: whoever has
sampled a token before is in the generation group, however many tokens the step gives it. That is why a
generation request can have 17 tokens.

Refused by `test_the_log_says_what_the_events_say`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def iterations_of(events: Any) -> Any:
    events = list(events)
    back, preempted = set(), set()
    for place, event in enumerate(events):
        if event.status == "PREEMPTED":
            preempted.add(event.request_id)
        elif event.request_id in preempted:
            preempted.remove(event.request_id)
            back.add(place)
    lines = {line.number: list(line) for line in solution.iterations_of(events)}
    for place in back:
        line, tokens = lines[events[place].step - 1], events[place].num_scheduled_tokens
        for at, change in ((1, 1), (2, tokens), (3, -1), (4, -tokens)):
            line[at] += change
    return [solution.Iteration(*line) for line in lines.values()]


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
