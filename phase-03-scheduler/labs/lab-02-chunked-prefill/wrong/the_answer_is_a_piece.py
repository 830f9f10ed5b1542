"""The steps of the answer are counted as pieces of the prompt.

A step that computes a token of the answer computes none of the prompt: stop with the first sampled token.

Refused by `test_ask_says_what_the_engine_did`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def ask(engine: Any, prompts: Mapping[str, str], num_tokens: int) -> dict[str, Any]:
    chunks: dict[str, list[int]] = {name: [] for name in prompts}

    def observe(record: Any) -> None:
        for name, num_new_tokens in record.scheduler_output.num_scheduled_tokens.items():
            chunks[name].append(num_new_tokens)

    engine.engine_core.step_observers.append(observe)
    answers = solution.ask(engine, prompts, num_tokens)
    engine.engine_core.step_observers.remove(observe)
    return {name: one._replace(chunks=chunks[name]) for name, one in answers.items()}


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
