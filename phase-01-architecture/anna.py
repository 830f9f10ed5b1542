"""Anna, Ben, Cleo and Dov: what the pages of this phase run, so that the pages show results only.

Four people ask the same model at once. Anna wants 64 tokens of answer, the others 8 each. The runs
are `mini_vllm`'s; nothing here is timed, so every number is the same on every machine.

The pages import this module by its name: start Python in this folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from mini_vllm import EngineConfig, LLMEngine, SamplingParams
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.trace import TraceRecorder
from mini_vllm.trace.types import StepTrace

PROMPTS = {
    "anna": "The KV cache",
    "ben": "Why does it wait for a block?",
    "cleo": "A batch",
    "dov": "One step",
}
"""13, 30, 8 and 9 tokens with the token that begins a text."""
WANTED = {"anna": 64, "ben": 8, "cleo": 8, "dov": 8}
EVERYBODY = tuple(PROMPTS)


def greedy(num_tokens: int, **more: Any) -> SamplingParams:
    """The likeliest token each time, and exactly `num_tokens` of them."""
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, **more)


def new_engine(
    max_num_seqs: int = 4, budget: int | None = None, blocks: int | None = None
) -> LLMEngine:
    """An engine with so many batch slots, tokens per step and usable blocks; None is a default."""
    settings: dict[str, Any] = {"max_num_seqs": max_num_seqs}
    if budget is not None:
        settings["max_num_batched_tokens"] = budget
    if blocks is not None:
        settings["num_gpu_blocks"] = blocks + 1  # block 0 is the null block, which nobody gets
    return LLMEngine(config=EngineConfig(**settings))


def ask(engine: LLMEngine, *people: str) -> None:
    for name in people:
        engine.add_request(name, PROMPTS[name], greedy(WANTED[name]))


def serve(*groups: Sequence[str], **settings: int) -> list[StepTrace]:
    """Serve one group after the other, each until all of it is done. Returns every step.

    `settings` are those of `new_engine`.
    """
    engine = new_engine(**settings)
    recorder = TraceRecorder(engine)
    for group in groups:
        ask(engine, *group)
        while engine.has_unfinished_requests():
            engine.step()
    return recorder.steps


def passes(steps: list[StepTrace]) -> dict[str, tuple[int, int]]:
    """For each person, in which step the first token of the answer came, and in which the last."""
    found: dict[str, tuple[int, int]] = {}
    for step in steps:
        for part in step.scheduled:
            if part.new_token_ids:
                name = part.request_id
                found[name] = found.get(name, (step.index, 0))[0], step.index
    return found


def show(steps: list[StepTrace], first: int, last: int) -> None:
    """Print the schedules of steps `first` to `last`: tokens for each person, and what is free."""
    print("step" + "".join(f"{name:>6}" for name in EVERYBODY) + "  free blocks")
    for step in steps[first - 1 : last]:
        planned = {part.request_id: part.num_scheduled_tokens for part in step.scheduled}
        cells = "".join(f"{planned.get(name, '.'):>6}" for name in EVERYBODY)
        print(f"{step.index:4}{cells}{step.free_blocks:8}")


def tokens(start: int, count: int) -> dict[str, list[int]]:
    """A prompt of so many tokens; no other prompt begins with the same if `start` is another."""
    return {"prompt_token_ids": list(range(start, start + count))}


def schedules(engine: LLMEngine, steps: int = 100) -> list[dict[str, int]]:
    """Step until nobody is left, `steps` times at most. Returns what each step computed for whom."""
    seen: list[dict[str, int]] = []
    engine.engine_core.step_observers.append(
        lambda record: seen.append(record.scheduler_output.num_scheduled_tokens)
    )
    while engine.has_unfinished_requests() and len(seen) < steps:
        engine.step()
    return seen


# The machines of the guide, from the first to the last. `pictures.py` draws them.
FATES: dict[str, tuple[tuple[Sequence[str], ...], dict[str, int]]] = {
    "one at a time": ((("anna",), ("ben",), ("cleo",), ("dov",)), {"max_num_seqs": 1}),
    "two slots, fixed batches": ((("anna", "ben"), ("cleo", "dov")), {"max_num_seqs": 2}),
    "two slots, decided each pass": ((EVERYBODY,), {"max_num_seqs": 2}),
    "four slots, 16 tokens a pass": ((EVERYBODY,), {"max_num_seqs": 4, "budget": 16}),
    "four slots, 6 blocks": ((EVERYBODY,), {"max_num_seqs": 4, "blocks": 6}),
}


def fates() -> None:
    """Print the passes of everybody's first and last token, on each machine of the guide."""
    print(" " * 30 + "".join(f"{name:>8}" for name in EVERYBODY))
    for title, (groups, settings) in FATES.items():
        found = passes(serve(*groups, **settings))
        cells = (f"{first}-{last}" for first, last in (found[name] for name in EVERYBODY))
        print(f"{title:30}" + "".join(f"{cell:>8}" for cell in cells))


# --- HTTP ---


async def health_beside(answer: Any, engine: LLMEngine) -> int:
    """Passes that are over when a health check gets its answer. It came just after Anna did."""
    counted = 0

    def count(record: object) -> None:
        nonlocal counted
        counted += 1

    engine.engine_core.step_observers.append(count)

    async def health() -> int:
        return counted

    _, over = await asyncio.gather(answer, health())
    return int(over)


def health_check(engine: LLMEngine) -> int:
    """Anna's handler steps the engine itself. Returns the passes that health waited for."""

    async def handler() -> None:
        ask(engine, "anna")
        while engine.has_unfinished_requests():
            engine.step()

    return asyncio.run(health_beside(handler(), engine))


def hang_up(after: int) -> dict[str, int]:
    """Anna reads so many tokens of her stream and leaves. What the engine is left with."""

    async def leave() -> dict[str, int]:
        llm = AsyncLLM(config=EngineConfig(num_gpu_blocks=64))
        stream = llm.generate(PROMPTS["anna"], greedy(WANTED["anna"]), "anna")
        async for output in stream:
            if len(output.outputs[0].token_ids) >= after:
                break
        await stream.aclose()
        await llm.drain()
        llm.shutdown()
        core = llm.engine.engine_core
        pool = core.kv_cache_manager.block_pool
        return {
            "requests": len(core.scheduler.requests),
            "blocks in use": 63 - pool.get_num_free_blocks(),
        }

    return asyncio.run(leave())


def post(**body: Any) -> dict[str, Any]:
    """POST /v1/completions to the server's own application, greedy; the answer's JSON."""
    from fastapi.testclient import TestClient

    from mini_vllm.entrypoints.openai.app import build_app
    from mini_vllm.entrypoints.openai.settings import ServerSettings

    with TestClient(build_app(AsyncLLM(), ServerSettings())) as client:
        asked = {"temperature": 0, "ignore_eos": True} | body
        answer: dict[str, Any] = client.post("/v1/completions", json=asked).json()
    return answer
