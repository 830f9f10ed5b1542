"""The last difference is reported.

After the first one the two engines live in different worlds: another block is at the front of the
queue, and from then on everything differs, for no reason of its own. Stop at the first.

Refused by `test_a_replay_stops_at_the_first`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def first_difference(trace: Any, steps: Any, make: Any) -> Any:
    replay, last = solution.Replay(trace, make(trace["config"])), None
    for turns in steps:
        found = replay.step(turns)
        if found is not None:
            last = found
            replay.compute(turns.decision["scheduled"])
            replay.take_in(turns.sampled, list(turns.decision["finished"]))
    return last


solution.first_difference = first_difference


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
