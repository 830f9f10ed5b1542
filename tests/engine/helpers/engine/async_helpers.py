"""An `AsyncLLM` for tests, and what its streams amount to."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest

from mini_vllm import LLMEngine, RequestOutput, RequestOutputKind, SamplingParams
from mini_vllm.engine.async_llm import AsyncLLM, EngineShutdownError
from mini_vllm.engine.step_record import StepRecord
from tests.engine.helpers.engine.invariants import check_drained
from tests.engine.helpers.engine.text_helpers import check_no_leak, greedy, text_engine
from tests.engine.helpers.patience import PATIENCE

T = TypeVar("T")
CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
KINDS = [CUMULATIVE, DELTA, FINAL_ONLY]


def run(main: Coroutine[Any, Any, T]) -> T:
    """Nothing here takes a second; what hangs is to fail."""
    return asyncio.run(asyncio.wait_for(main, 30))


@contextlib.contextmanager
def serving(
    engine: LLMEngine | None = None, paced: bool = False, **kwargs: Any
) -> Iterator[AsyncLLM]:
    """An `AsyncLLM`; at the end it is shut down, and unless it died nothing may be left in it.

    Args:
        paced: in each step the event loop gets a turn. Else a request may be over before a busy machine lets
            the test look.
    """
    if engine is None:
        engine = text_engine(num_gpu_blocks=64)
    async_llm = AsyncLLM(engine, **kwargs)
    if paced:
        engine.engine_core.step_observers.append(partial(await_a_turn, async_llm))
    try:
        yield async_llm
    finally:
        async_llm.shutdown()
    assert not async_llm._thread._streams
    assert not async_llm._thread._patient
    if type(async_llm.dead_error) is EngineShutdownError:
        check_no_leak(engine)
        check_drained(engine.engine_core.scheduler)


def await_a_turn(async_llm: AsyncLLM, record: StepRecord) -> None:
    """Hold the engine until the event loop has gone round, is closed, or waits for the engine's end."""
    thread, turned = async_llm._thread, threading.Event()
    while thread._call_loop(turned.set) and not thread._stopping:
        if turned.wait(0.05):
            return


async def on_engine(async_llm: AsyncLLM, look: Callable[[LLMEngine], T]) -> T:
    """What `look` finds, between two steps, after every command sent up to now."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def command() -> None:
        try:
            result = look(async_llm.engine)
        except AssertionError as error:
            loop.call_soon_threadsafe(found.set_exception, error)
        else:
            loop.call_soon_threadsafe(found.set_result, result)

    assert async_llm._thread.send(command)
    return await found


def join(outputs: list[RequestOutput], kind: RequestOutputKind) -> list[tuple[Any, ...]]:
    """A stream's outputs as the completions they amount to, by index."""
    whole: dict[int, list[Any]] = {}
    for output in outputs:
        for c in output.outputs:
            logprobs = None if c.logprobs is None else [*c.logprobs]
            new = [c.text, [*c.token_ids], logprobs]
            if kind is DELTA and c.index in whole:
                old = whole[c.index]
                new = [old[0] + new[0], old[1] + new[1], logprobs and old[2] + logprobs]
            whole[c.index] = [*new, c.finish_reason, c.stop_reason, c.cumulative_logprob]
    return [(index, *whole[index]) for index in sorted(whole)]


def same(streamed: list[tuple[Any, ...]], offline: list[tuple[Any, ...]]) -> None:
    """Equal, but for the last digits of logprobs: who shares the step moves those."""
    assert [(c[0], c[1], c[2], c[4], c[5]) for c in streamed] == [
        (c[0], c[1], c[2], c[4], c[5]) for c in offline
    ]
    for mine, theirs in zip(streamed, offline, strict=True):
        assert mine[6] == (None if theirs[6] is None else pytest.approx(theirs[6], abs=1e-3))
        if theirs[3] is None:
            assert mine[3] is None
            continue
        assert len(mine[3]) == len(theirs[3]) == len(mine[2]), "one position of logprobs a token"
        for a, b in zip(mine[3], theirs[3], strict=True):
            assert {t: x.decoded_token for t, x in a.items()} == {
                t: x.decoded_token for t, x in b.items()
            }
            assert [x.logprob for x in a.values()] == pytest.approx(
                [x.logprob for x in b.values()], abs=1e-3
            )


async def collect(stream: AsyncGenerator[RequestOutput, None]) -> list[RequestOutput]:
    return [output async for output in stream]


def with_kind(params: SamplingParams, kind: RequestOutputKind) -> SamplingParams:
    params = params.clone()
    params.output_kind = kind
    return params


class Gate:
    """An observer that holds the engine in the middle of a step, and lists who ran in each."""

    def __init__(self) -> None:
        self.hold_at: int | None = None
        self.reached, self.open = threading.Event(), threading.Event()
        self.ran: list[set[str]] = []

    def __call__(self, record: StepRecord) -> None:
        self.ran.append(set(record.scheduler_output.num_scheduled_tokens))
        if record.index == self.hold_at:
            self.reached.set()
            assert self.open.wait(PATIENCE)


LONG = greedy(150, ignore_eos=True, output_kind=DELTA)
