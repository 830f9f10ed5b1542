"""The test knows only requests that must not be let in.

Then the safest engine is one that lets nobody in. A mend has two sides, and the second is at the
boundary, too: what just fits has to run, all of it.

Refused by `test_your_test_fails_on_every_bad_mend`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def check_one(engine: Any, length: int, prompt: int, max_tokens: int) -> None:
    try:
        engine.add_request("first", prompt, max_tokens)
    except ValueError:
        return
    engine.add_request("behind", 1, 1)
    for _ in range(60):
        engine.step()
    assert "first" in engine.finished, f"a prompt of {prompt} with max_tokens {max_tokens} waits"
    assert "behind" in engine.finished, "who came behind it waits"


solution._check_one = check_one


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
