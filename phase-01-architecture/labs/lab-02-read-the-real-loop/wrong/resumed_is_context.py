"""A preempted request counts as context again when it is back.

It computes much of its prompt anew, so it looks like a prefill. The log line does not go by that: whoever
has sampled a token before is in the generation group, however many tokens the step gives it. That is why a
generation request can have 17 tokens.

Refused by `test_a_request_that_has_sampled_is_generation_for_good`.
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
        elif event.request_id in preempted and event.num_scheduled_tokens:
            back.add(place)
            if event.new_token_ids:
                preempted.remove(event.request_id)
    lines = {}
    steps = sorted({event.step for event in events if event.step})
    for step, line in zip(steps, solution.iterations_of(events), strict=True):
        lines[step] = list(line)
    for place in back:
        line, tokens = lines[events[place].step], events[place].num_scheduled_tokens
        for at, change in ((1, 1), (2, tokens), (3, -1), (4, -tokens)):
            line[at] += change
    return [solution.Iteration(*line) for line in lines.values()]


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
