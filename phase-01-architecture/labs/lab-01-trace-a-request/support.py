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
    return lab.Tracer(LLMEngine(model, EngineConfig(**settings), tokenizer=tokenizer))


def run(t: Any) -> list[Any]:
    """All events of a whole run, whatever `Tracer.run` returns: one test looks at that."""
    t.run()
    assert t.events, "run was called with a request in the engine, and no event was written"
    events: list[Any] = t.events
    return events


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
    shown = ", ".join(f"{e.status} at step {e.step}" for e in events[:6])
    assert len(events) == want, (
        f"expected {want} events, got {len(events)}: {shown}{', …' if len(events) > 6 else ''}. {why}"
    )
