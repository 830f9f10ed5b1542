"""Lab 01-06, what its tests share: an engine that is watched, a gate inside its step, limits of time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from mini_vllm.engine.core import EngineDeadError
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.sampling_params import SamplingParams

LIMIT = 4.0  # seconds for a whole test, which needs a small part of one; what takes longer hangs
PATIENCE = 1.0  # seconds that a step waits for what must happen during it
PROMPT = "The KV cache"
SETTINGS = {
    "num_gpu_blocks": 64,
    "max_model_len": 128,
    "max_num_batched_tokens": 32,
    "max_num_seqs": 16,
}


class WatchedEngine(LLMEngine):
    """The real engine; it counts its steps and notes who calls it during one.

    `before_step(n)` is called, in the thread that steps, at the beginning of step n (from 1).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_steps = 0
        self.num_asked = 0
        self.before_step: Callable[[int], None] = lambda n: None
        self.stepping = False
        self.overlaps: list[str] = []

    def step(self) -> list[RequestOutput]:
        if self.stepping:
            self.overlaps.append("step")
        self.num_steps += 1
        self.stepping = True
        try:
            self.before_step(self.num_steps)
            return super().step()
        finally:
            self.stepping = False

    def add_request(self, *args: Any, **kwargs: Any) -> str:
        if self.stepping:
            self.overlaps.append("add_request")
        return super().add_request(*args, **kwargs)

    def abort_request(self, *args: Any, **kwargs: Any) -> None:
        if self.stepping:
            self.overlaps.append("abort_request")
        super().abort_request(*args, **kwargs)

    def has_unfinished_requests(self) -> bool:
        self.num_asked += 1
        return super().has_unfinished_requests()

    @property
    def alive(self) -> int:
        return self.get_num_unfinished_requests()

    @property
    def num_free_blocks(self) -> int:
        return self.engine_core.kv_cache_manager.block_pool.get_num_free_blocks()


class Gate:
    """Holds the engine inside the steps `first`, `first` + 1, … until it is opened.

    Where nobody opens it within `PATIENCE` seconds it opens itself and says so in `forced`.
    """

    def __init__(self, engine: WatchedEngine, first: int) -> None:
        self.first = first
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.forced = False
        engine.before_step = self

    def __call__(self, step: int) -> None:
        if step < self.first or self.opened.is_set():
            return
        self.entered.set()
        if not self.opened.wait(PATIENCE):
            self.forced = True
            self.opened.set()

    async def until_entered(self) -> None:
        await until(self.entered.is_set)


async def until(true: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Let the others run until `true()`, at most so long; whether it became true."""
    for _ in range(int(seconds / 0.004)):  # looks, not seconds: a busy machine gets more time
        if true():
            return True
        await asyncio.sleep(0.004)
    return true()


async def turns(count: int = 20) -> None:
    """Let every other task of the event loop run `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


hung: list[str] = []
"""The hints of tests that hung. After the first, the others are given less time: they hang too."""


def run(main: Coroutine[Any, Any, None], hint: str) -> None:
    """Run a test to its end, or fail with the hint when it hangs."""
    limit = LIMIT if not hung else 2 * PATIENCE  # a test's own wait, and what it says, come first
    made: list[asyncio.Task[Any]] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(asyncio.Task(work, loop=loop, **options))
        return made[-1]

    async def limited() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        loop.set_exception_handler(lambda *_: None)  # the tests look at every task themselves
        task = asyncio.ensure_future(main)
        looks = 0  # not seconds: where others want the processor, each look takes longer
        while not task.done():
            await asyncio.wait([task], timeout=0.05)
            looks += 1
            # What is not written yet ends a task of its own, and others wait for it.
            for one in made:
                error = one.exception() if one.done() and not one.cancelled() else None
                if isinstance(error, NotImplementedError):
                    raise error
            if looks > limit / 0.05:
                hung.append(hint)
                raise AssertionError(f"still waiting after {limit:.0f} s. {hint}")
        await task

    asyncio.run(limited())


def greedy(max_tokens: int = 8, **knobs: Any) -> SamplingParams:
    knobs = {"temperature": 0.0, "ignore_eos": True, "max_tokens": max_tokens} | knobs
    return SamplingParams(**knobs)


async def read(stream: AsyncGenerator[RequestOutput, None]) -> list[RequestOutput]:
    return [output async for output in stream]


async def refused(stream: AsyncGenerator[RequestOutput, None]) -> bool:
    """Whether the stream ends with EngineDeadError."""
    try:
        await read(stream)
    except EngineDeadError:
        return True
    return False


def num_tokens(outputs: list[RequestOutput]) -> int:
    return sum(len(completion.token_ids) for output in outputs for completion in output.outputs)


def joined(outputs: list[RequestOutput]) -> dict[int, dict[str, Any]]:
    """What the deltas of a stream amount to, by completion; the final output says the same of itself."""
    whole: dict[int, dict[str, Any]] = {}
    for output in outputs:
        for delta in output.outputs:
            one = whole.setdefault(delta.index, {"text": "", "token_ids": [], "logprobs": []})
            one["text"] += delta.text
            one["token_ids"] += delta.token_ids
            for position in delta.logprobs or []:
                one["logprobs"].append(list(position))
            one["finish_reason"], one["stop_reason"] = delta.finish_reason, delta.stop_reason
            if delta.cumulative_logprob is not None:
                one["cumulative_logprob"] = round(delta.cumulative_logprob, 3)
    return whole


def first_difference(got: dict[int, dict[str, Any]], want: dict[int, dict[str, Any]]) -> str:
    """The first thing in which two answers, as `joined` gives them, are not the same."""
    if got.keys() != want.keys():
        return f"completions {sorted(got)} came, {sorted(want)} should"
    for index, wanted in want.items():
        for name, value in wanted.items():
            mine = got[index].get(name)
            if mine == value:
                continue
            if not isinstance(value, str | list) or not isinstance(mine, str | list):
                return f"{name} of completion {index} is {mine!r}, should be {value!r}"
            at = next(
                (i for i, (x, y) in enumerate(zip(mine, value, strict=False)) if x != y), None
            )
            if at is None:
                return f"{name} of completion {index} has the length {len(mine)}, should have {len(value)}"
            return f"{name} of completion {index} has {mine[at]!r} at place {at}, should have {value[at]!r}"
    return "nothing"


class Wakings:
    """Notes when one task of the running event loop sets a timer, and when it asks for a turn.

    A task that sleeps on an event or waits for a lock or a thread does neither: others wake it.
    """

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.timers = self.turns = 0
        loop = asyncio.get_running_loop()
        call_at, call_soon = loop.call_at, loop.call_soon

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.timers += asyncio.current_task(loop) is task
            return call_at(*args, **kwargs)

        def soon(*args: Any, **kwargs: Any) -> Any:
            self.turns += asyncio.current_task(loop) is task
            return call_soon(*args, **kwargs)

        loop.call_at, loop.call_soon = timed, soon  # type: ignore[method-assign]


def make_output(
    text: str, token_ids: list[int], index: int = 0, finished: bool = False, **fields: Any
) -> RequestOutput:
    completion = CompletionOutput(index=index, text=text, token_ids=token_ids, **fields)
    return RequestOutput("r", "p", [1, 2], None, [completion], finished, 0)
