"""A request is context in the step in which it is new, and generation from then on.

A prompt longer than the budget comes in chunks, and the second chunk is as much prompt as the first. What
counts is not whether the request has run before but whether it has sampled.

Refused by `test_a_prompt_is_context_until_its_first_token`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def iterations_of(events: Any) -> Any:
    steps: dict[int, list[int]] = {}
    seen: set[str] = set()
    for event in events:
        if event.step == 0:
            continue
        counts = steps.setdefault(event.step, [0, 0, 0, 0])
        if event.num_scheduled_tokens:
            group = 2 if event.request_id in seen else 0
            counts[group] += 1
            counts[group + 1] += event.num_scheduled_tokens
            seen.add(event.request_id)
    return [solution.Iteration(i, *steps[step]) for i, step in enumerate(sorted(steps))]


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
