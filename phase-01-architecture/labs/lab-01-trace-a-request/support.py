"""Lab 01-01: what both files of tests use: prompts, a tracer on a fresh engine, checks of events."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mini_vllm import EngineConfig, LLMEngine, SamplingParams

PROMPT = "The KV cache"  # 13 tokens with <bos>
P = 13
POOL = "The pool has five blocks"[:23]  # 24 tokens each, with nothing in common but <bos>
LATER = "Later the last one goes."[:23]


def tracer(lab: ModuleType, loaded: tuple[Any, Any], **settings: Any) -> Any:
    model, tokenizer = loaded
    t = lab.Tracer(LLMEngine(model, EngineConfig(**settings), tokenizer=tokenizer))
    run, step = t.run, t.step

    def checked_run() -> Any:
        got = run()
        assert got == t.events, f"run returns all events, the list `events`; it returned {got!r}"
        assert got, "run was called with a request in the engine, and no event was written"
        return got

    def checked_step() -> Any:
        got = step()
        assert isinstance(got, list), (
            f"step returns what engine.step() returns, a list of outputs; it returned {got!r}"
        )
        return got

    t.run, t.step = checked_run, checked_step
    return t


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def of(events: list[Any], request_id: str) -> list[Any]:
    return [event for event in events if event.request_id == request_id]


def expect(event: Any, why: str, **fields: Any) -> None:
    """`event` has these values; else name the first that it has not, and the rule."""
    for name, want in fields.items():
        got = getattr(event, name)
        assert got == want, (
            f"request {event.request_id!r} at step {event.step}: {name} should be {want!r}, got "
            f"{got!r}. {why}"
        )


def count(events: list[Any], want: int, why: str) -> None:
    assert len(events) == want, (
        f"expected {want} events, got {len(events)}: "
        f"{[(e.step, e.request_id, e.status) for e in events]}. {why}"
    )
