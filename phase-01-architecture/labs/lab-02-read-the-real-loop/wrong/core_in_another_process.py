"""`VLLM_ENABLE_V1_MULTIPROCESSING` is set to "1", or left alone, which is the same.

The engine core then starts in a process of its own, and `llm.llm_engine.engine_core` is a client that talks
to it. There is no scheduler to wrap. "0" keeps the core here.

Refused by `test_environment`.
"""

from __future__ import annotations

from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


def environment() -> dict[str, str]:
    return dict(solution.environment(), VLLM_ENABLE_V1_MULTIPROCESSING="1")


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
