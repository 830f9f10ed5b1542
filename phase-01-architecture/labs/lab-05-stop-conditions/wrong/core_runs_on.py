"""The user is told "stop", and nobody tells the core.

The core does not see text. It generates on, to `max_tokens`, with blocks and a place in the batch, for
an answer that was delivered long ago. A stop string in a request that the core still runs needs an abort.

Refused by `test_a_stop_string_aborts_the_core`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def front_end_verdict(
    core_reason: str | None, core_stop_reason: int | str | None, stop_string: str | None
) -> Any:
    if stop_string is not None:
        return solution.Verdict("stop", stop_string, abort_core=False)
    return solution.Verdict(core_reason, core_stop_reason, abort_core=False)


solution.front_end_verdict = front_end_verdict


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
