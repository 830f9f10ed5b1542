"""Lab 01-06: what a streaming engine must do for its readers, and what none of them may do to the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import ModuleType
from typing import Any

import pytest

from mini_vllm import LLM
from mini_vllm.checkpoint import load_model
from mini_vllm.config import EngineConfig
from mini_vllm.engine import DEFAULT_MODEL, EngineDeadError, LLMEngine
from mini_vllm.llama import LlamaForCausalLM
from mini_vllm.outputs import CompletionOutput, Logprob, RequestOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.tokenizer import Tokenizer

LIMIT = 4.0  # seconds for a whole test, which needs a small part of one; what takes longer hangs
PATIENCE = 1.0  # seconds that a step waits for what must happen during it
PROMPT = "The KV cache"
SETTINGS = {
    "num_gpu_blocks": 64,
    "max_model_len": 128,
    "max_num_batched_tokens": 32,
    "max_num_seqs": 16,
}


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return load_model(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(DEFAULT_MODEL)


@pytest.fixture
def engine(model: LlamaForCausalLM, tokenizer: Tokenizer) -> WatchedEngine:
    return WatchedEngine(model, EngineConfig(**SETTINGS), tokenizer=tokenizer)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def batch() -> Callable[..., list[RequestOutput]]:
    """The offline front door over an engine with the same settings."""
    llm = LLM(**SETTINGS)  # type: ignore[arg-type]

    def generate(prompts: list[Any], params: list[SamplingParams]) -> list[RequestOutput]:
        return llm.generate(prompts, params, use_tqdm=False)

    return generate


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
    end = asyncio.get_running_loop().time() + seconds
    while not true():
        if asyncio.get_running_loop().time() > end:
            return False
        await asyncio.sleep(0.001)
    return True


async def turns(count: int = 20) -> None:
    """Let every other task of the event loop run `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


hung: list[str] = []
"""The hints of tests that hung. After the first, the others are given less time: they hang too."""


def run(main: Coroutine[Any, Any, None], hint: str) -> None:
    """Run a test to its end, or fail with the hint when it hangs."""
    limit = LIMIT if not hung else LIMIT / 4
    made: list[asyncio.Task[Any]] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(asyncio.Task(work, loop=loop, **options))
        return made[-1]

    async def limited() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        loop.set_exception_handler(lambda *_: None)  # the tests look at every task themselves
        end = loop.time() + limit
        task = asyncio.ensure_future(main)
        while not task.done():
            await asyncio.wait([task], timeout=0.05)
            for (
                one
            ) in made:  # what is not written yet ends a task of its own, and others wait for it
                error = one.exception() if one.done() and not one.cancelled() else None
                if isinstance(error, NotImplementedError):
                    raise error
            if loop.time() > end:
                hung.append(hint)
                raise AssertionError(f"still waiting after {limit:.0f} s. {hint}")
        await task

    asyncio.run(limited())


def greedy(max_tokens: int = 8, **knobs: Any) -> SamplingParams:
    knobs = {"temperature": 0.0, "ignore_eos": True, "max_tokens": max_tokens} | knobs
    return SamplingParams(**knobs)


async def read(stream: AsyncGenerator[RequestOutput, None]) -> list[RequestOutput]:
    outputs = [output async for output in stream]
    assert None not in outputs, (
        "generate yielded None: is the starter's placeholder `yield` still at its end?"
    )
    return outputs


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


def make_output(
    text: str, token_ids: list[int], index: int = 0, finished: bool = False, **fields: Any
) -> RequestOutput:
    completion = CompletionOutput(index=index, text=text, token_ids=token_ids, **fields)
    return RequestOutput("r", "p", [1, 2], None, [completion], finished, 0)


# ---- merge and the collector ---------------------------------------------------------------------


def test_merge_joins_the_deltas(lab: ModuleType) -> None:
    """Text, token ids and logprobs are joined; reasons, cumulative logprob and finished are the newer's."""
    one, two = [{5: Logprob(-1.0)}], [{6: Logprob(-2.0)}]
    output = make_output("ab", [5], logprobs=list(one), cumulative_logprob=-1.0)
    newer = make_output(
        "c", [6, 7], finished=True, logprobs=list(two), cumulative_logprob=-3.0,
        finish_reason="stop", stop_reason="x",
    )  # fmt: skip
    lab.merge(output, newer)
    [completion] = output.outputs
    assert (completion.text, completion.token_ids) == ("abc", [5, 6, 7]), (
        f"deltas 'ab' [5] and 'c' [6, 7] make 'abc' [5, 6, 7], in that order; yours "
        f"{completion.text!r} {completion.token_ids}"
    )
    assert completion.logprobs == one + two, (
        "the logprobs of both deltas, one entry a token, in order"
    )
    assert completion.cumulative_logprob == -3.0, (
        "cumulative_logprob is a sum over all tokens so far already: take the newer one"
    )
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "x"), (
        "the newer output knows how it ended; a merge that keeps the older's None loses the end"
    )
    assert output.finished is True, "after the last delta was merged the output is finished"
    plain = make_output("a", [1])
    lab.merge(plain, make_output("b", [2]))
    assert (plain.outputs[0].logprobs, plain.finished) == (None, False), (
        "no logprobs were asked for: None stays None. Nor is the request finished"
    )


def test_merge_goes_by_the_completions_index(lab: ModuleType) -> None:
    """With n > 1 each completion has its own text; one that was not there yet is appended."""
    output = make_output("a0", [10])
    lab.merge(output, make_output("b0", [20], index=1))
    lab.merge(output, make_output("a1", [11]))
    lab.merge(output, make_output("b1", [21], index=1, finish_reason="length"))
    got = [(c.index, c.text, c.token_ids, c.finish_reason) for c in output.outputs]
    assert got == [(0, "a0a1", [10, 11], None), (1, "b0b1", [20, 21], "length")], (
        f"two completions of one request, two deltas each: join those with the same index. Got {got}"
    )


def test_the_collector_merges_what_was_not_taken(lab: ModuleType) -> None:
    """Three outputs for a reader that reads once: one output, with all that they said."""

    async def main() -> None:
        collector = lab.OutputCollector()
        for text, token_id in (("a", 1), ("b", 2), ("c", 3)):
            collector.put(make_output(text, [token_id]))
        output = await collector.get()
        assert joined([output])[0]["token_ids"] == [1, 2, 3], (
            f"tokens 1, 2 and 3 were put before the reader came: one get gives them all, yours gave "
            f"{joined([output])[0]['token_ids']}. A delta that is replaced instead of merged is lost"
        )
        waiting = asyncio.ensure_future(collector.get())
        await turns()
        assert not waiting.done(), (
            f"all was taken, so the next get waits. Yours returned {waiting}: empty the collector, and "
            "clear its event"
        )
        collector.put(make_output("d", [4]))
        later = await waiting
        assert later.outputs[0].token_ids == [4], "what comes after a get is new, and comes alone"
        assert output.outputs[0].token_ids == [1, 2, 3], (
            "what the reader has taken is the reader's: a later output must not be merged into it"
        )

    run(main(), "`get` waits for the event that `put` sets: set it in every put")


def test_the_collector_hands_on_errors(lab: ModuleType) -> None:
    """An error takes the place of what is there, and get raises it."""

    async def main() -> None:
        for first in ([], [make_output("a", [1])]):
            collector = lab.OutputCollector()
            for output in first:
                collector.put(output)
            error = EngineDeadError("gone")
            collector.put(error)
            try:
                got: Any = await collector.get()
            except EngineDeadError as raised:
                got = raised
            assert got is error, (
                f"an error was put after {len(first)} outputs: the next get raises it, and what was not "
                f"taken before is given up; yours gave {got!r}"
            )

    run(main(), "an error wakes the reader as an output does")


# ---- streams -------------------------------------------------------------------------------------

MIXED: list[tuple[Any, SamplingParams]] = [
    (PROMPT, greedy(20)),
    (PROMPT, SamplingParams(temperature=0.9, seed=1, max_tokens=30, logprobs=2)),
    ({"prompt_token_ids": [1, 50, 60, 70]}, greedy(1)),
    ("The scheduler picks requests and the blocks follow", greedy(12, prompt_logprobs=1)),
    ("ab", SamplingParams(seed=3, max_tokens=40, allowed_token_ids=[105, 106], stop=["abb"])),
    ("ab", SamplingParams(seed=4, max_tokens=40, allowed_token_ids=[105, 106], stop=["bab", "aa"],
                          min_tokens=5, include_stop_str_in_output=True)),
    ("ab", SamplingParams(seed=5, max_tokens=40, allowed_token_ids=[105, 2])),
    (PROMPT, SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=9, logprobs=0)),
]  # fmt: skip
"""Prompts and parameters: greedy, seeded, n = 3, logprobs, stop strings, EOS. Token 105 is 'a', 106 'b'."""


def test_streams_joined_are_the_batch_outputs(
    lab: ModuleType, engine: WatchedEngine, batch: Callable[..., list[RequestOutput]]
) -> None:
    """Eight different requests at once: each stream's deltas, joined, are what LLM.generate returns."""
    prompts, params = [p for p, _ in MIXED], [s for _, s in MIXED]
    want = [joined([output]) for output in batch(prompts, params)]

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            streams = [
                read(front_door.generate(prompt, param, f"request {i}"))
                for i, (prompt, param) in enumerate(MIXED)
            ]
            results = await asyncio.gather(*streams)
        for outputs, wanted, (_, param) in zip(results, want, MIXED, strict=True):
            assert joined(outputs) == wanted, (
                f"{param}: the stream, joined, is {joined(outputs)}, LLM.generate says {wanted}"
            )
            assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True], (
                "the last output of a stream, and no other, is finished"
            )
        assert all(param.output_kind is RequestOutputKind.CUMULATIVE for param in params), (
            "the caller's SamplingParams were changed: clone them before you set output_kind"
        )
        assert engine.overlaps == [], (
            f"{engine.overlaps} called while a step was running: hold the lock for every call"
        )

    run(main(), "A stream ends after the output that says finished; new work must wake the engine")


def test_text_comes_while_the_engine_runs(lab: ModuleType, engine: WatchedEngine) -> None:
    """The first token reaches its reader before the fourth is made."""

    async def main() -> None:
        gate = Gate(engine, first=4)
        async with lab.AsyncEngine(engine) as front_door:
            outputs = []
            async for output in front_door.generate(PROMPT, greedy(6), "r"):
                outputs.append(output)
                gate.opened.set()
        assert not gate.forced, (
            "the engine stood at the beginning of step 4 and the reader had not seen token 1. Deliver "
            "the outputs of each step as soon as it is over"
        )
        assert num_tokens(outputs) == 6, f"6 tokens, yours brought {num_tokens(outputs)}"
        assert all(num_tokens([output]) > 0 for output in outputs), "no output without news"

    run(main(), "the reader waits for outputs that nobody delivers")


def test_the_event_loop_runs_during_a_step(lab: ModuleType, engine: WatchedEngine) -> None:
    """A step that takes long leaves the event loop free: a heartbeat goes on in the middle of it."""

    async def main() -> None:
        gate = Gate(engine, first=2)
        beats = 0

        async def heartbeat() -> None:
            nonlocal beats
            await gate.until_entered()
            while beats < 5:
                beats += 1
                await asyncio.sleep(0)
            gate.opened.set()

        async with lab.AsyncEngine(engine) as front_door:
            heart = asyncio.ensure_future(heartbeat())
            await read(front_door.generate(PROMPT, greedy(3), "r"))
            await heart
        assert not gate.forced, (
            "step 2 waited for five beats of a heartbeat on the event loop, and none came: the step runs "
            "on the event loop itself, so every other task of the server stands still. Give it to a "
            "thread: await asyncio.to_thread(self.engine.step)"
        )

    run(main(), "the step never ended")


def test_nobody_calls_the_engine_during_a_step(lab: ModuleType, engine: WatchedEngine) -> None:
    """A request that arrives, and a reader that leaves, wait for the end of the step in flight."""

    async def main() -> None:
        gate = Gate(engine, first=3)
        async with lab.AsyncEngine(engine) as front_door:
            stays = asyncio.ensure_future(read(front_door.generate(PROMPT, greedy(6), "stays")))
            leaves = asyncio.ensure_future(read(front_door.generate("x", greedy(60), "leaves")))
            await gate.until_entered()
            comes = asyncio.ensure_future(read(front_door.generate("y", greedy(4), "comes")))
            leaves.cancel()
            await turns()
            overlaps = list(engine.overlaps)
            gate.opened.set()
            assert num_tokens(await stays) == 6, "the request that stays gets its 6 tokens"
            assert num_tokens(await comes) == 4, "the request that came during a step gets its 4"
        assert overlaps == engine.overlaps == [], (
            f"{engine.overlaps} called while a step was running in its thread: two threads in one engine "
            "spoil its queues and blocks. Hold the lock, or leave a note for who holds it"
        )

    run(main(), "who comes or leaves during a step must go on after it")


def test_who_gives_up_before_being_added_leaves_nothing(
    lab: ModuleType, engine: WatchedEngine
) -> None:
    """Cancelled while it waits for the engine: the request is never run, or ended at once."""

    async def main() -> None:
        gate = Gate(engine, first=2)
        async with lab.AsyncEngine(engine) as front_door:
            stays = asyncio.ensure_future(read(front_door.generate(PROMPT, greedy(8), "stays")))
            await gate.until_entered()
            gives_up = asyncio.ensure_future(read(front_door.generate("x", greedy(60), "gone")))
            await turns()
            gives_up.cancel()
            await turns()
            gate.opened.set()
            await stays
            assert await until(lambda: engine.alive == 0), (
                "a reader gave up before its request had been added, and it runs all the same"
            )
            assert engine.num_steps < 20, (
                f"8 tokens for the one that stayed, and the engine made {engine.num_steps} steps: it "
                "ran the request of the one that had gone"
            )

    run(main(), "a reader that is cancelled while it waits for the lock must not keep it")


# ---- leaving -------------------------------------------------------------------------------------


WAITS = (
    "a reader left during a step, and still waits while the step goes on: leaving must not wait for the "
    "lock, since a second cancellation could end that wait. Write the id down, and let whoever holds the "
    "lock next abort it"
)


@pytest.mark.parametrize("how", ["cancel", "aclose", "break"])
def test_leaving_frees_the_blocks(lab: ModuleType, engine: WatchedEngine, how: str) -> None:
    """A cancelled task, an aclose, a break: the request is aborted after the step in flight."""
    free = engine.num_free_blocks

    async def main() -> None:
        in_step = Gate(engine, first=5)
        enough = Gate(engine, first=10)  # who has left by step 5 needs no tenth
        if how != "break":
            engine.before_step = in_step
        async with lab.AsyncEngine(engine) as front_door:
            outputs: list[RequestOutput] = []

            async def reader() -> None:
                async for output in front_door.generate(PROMPT, greedy(100), "r"):
                    outputs.append(output)
                    if how == "break" and num_tokens(outputs) >= 3:
                        break

            if how == "aclose":
                stream = front_door.generate(PROMPT, greedy(100), "r")
                while num_tokens(outputs) < 3:
                    outputs.append(await anext(stream))
                await in_step.until_entered()
                closing = asyncio.ensure_future(stream.aclose())
                await asyncio.wait([closing], timeout=PATIENCE / 2)
                assert closing.done(), WAITS
            else:
                task = asyncio.ensure_future(reader())
                if how == "cancel":
                    await in_step.until_entered()
                    task.cancel()
                    await asyncio.wait([task], timeout=PATIENCE / 2)
                    assert task.done(), WAITS
                    assert task.cancelled(), (
                        "the reader's task was cancelled during the stream and went on as if the answer "
                        "were complete: generate may clean up after a CancelledError and has to let it "
                        "pass. A `finally` does both"
                    )
                await asyncio.wait([task])
            await turns()
            engine.before_step = enough
            in_step.opened.set()
            ended = await until(lambda: engine.alive == 0, PATIENCE / 2)
            enough.opened.set()
            assert ended, (
                f"the reader left ({how}) after 3 tokens, and the engine goes on to generate its 100, "
                "for nobody. Whatever ends generate, its `finally` must have the request aborted"
            )
            assert engine.num_free_blocks == free, (
                f"{free - engine.num_free_blocks} blocks are still taken after the only reader left"
            )
            again = await read(front_door.generate(PROMPT, greedy(2), "next"))
            assert num_tokens(again) == 2, (
                "the engine serves the next request as if nothing had been"
            )
        assert engine.overlaps == [], f"{engine.overlaps} called during a step"

    run(main(), "after a reader has left, the engine must go on for the others")


def test_leaving_during_the_last_step(lab: ModuleType, engine: WatchedEngine) -> None:
    """The request finishes in the step during which its reader leaves: there is nothing to abort."""

    async def main() -> None:
        gate = Gate(engine, first=3)
        async with lab.AsyncEngine(engine) as front_door:
            reader = asyncio.ensure_future(read(front_door.generate(PROMPT, greedy(3), "r")))
            await gate.until_entered()
            reader.cancel()
            await turns()
            gate.opened.set()
            assert await until(lambda: engine.alive == 0), "the request has had its 3 tokens"
            try:
                again = await read(front_door.generate(PROMPT, greedy(2), "next"))
            except EngineDeadError as error:
                raise AssertionError(
                    f"a reader left during the step that finished its request, and that killed the "
                    f"engine: {error}. abort_request raises ValueError for an id that is not alive; "
                    "ask before you abort"
                ) from error
            assert num_tokens(again) == 2, "the next request is served"

    run(main(), "after that step the engine has no work, and must still take new requests")


def test_an_id_that_was_left_is_free_at_once(lab: ModuleType, engine: WatchedEngine) -> None:
    """Leave, and ask again under the same id during the same step: the new request is the one that counts."""

    async def main() -> None:
        gate = Gate(engine, first=3)
        async with lab.AsyncEngine(engine) as front_door:
            first = asyncio.ensure_future(read(front_door.generate(PROMPT, greedy(60), "same")))
            await gate.until_entered()
            first.cancel()
            await asyncio.wait([first])
            second = asyncio.ensure_future(read(front_door.generate("x", greedy(5), "same")))
            await turns()
            gate.opened.set()
            try:
                outputs = await second
            except ValueError as error:
                raise AssertionError(
                    f"the reader of 'same' had left, and the id was refused: {error}. Abort those who "
                    "left before you add who comes"
                ) from error
        token_ids = [t for output in outputs for t in output.outputs[0].token_ids]
        assert len(token_ids) == 5, (
            f"the second request of this id has 5 tokens, its stream brought {len(token_ids)}"
        )
        assert {tuple(o.prompt_token_ids) for o in outputs} == {(1, 8 + ord("x"))}, (
            "outputs of the first request came to the second's reader"
        )

    run(main(), "the second request of the id gets no answer")


def test_a_late_reader_does_not_end_its_successor(lab: ModuleType, engine: WatchedEngine) -> None:
    """Its reader lingers, its id is taken again: closing the old stream ends only the old stream."""

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            old = front_door.generate(PROMPT, greedy(2), "same")
            await anext(old)
            assert await until(lambda: engine.alive == 0), "2 tokens are soon made"
            gate = Gate(engine, first=engine.num_steps + 2)
            new = asyncio.ensure_future(read(front_door.generate("x", greedy(6), "same")))
            await gate.until_entered()
            await old.aclose()
            gate.opened.set()
            assert num_tokens(await new) == 6, "the new request of the id lost tokens"

    run(
        main(),
        "The old stream was closed and took the new request of the same id with it: abort only if the "
        "collector registered under the id is your own",
    )


# ---- each for itself -----------------------------------------------------------------------------


def test_a_slow_reader_stalls_nobody(lab: ModuleType, engine: WatchedEngine) -> None:
    """It reads once and pauses; the others run to their end, and one merged output waits for it."""

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            slow = front_door.generate(PROMPT, greedy(12), "slow")
            outputs = [await anext(slow)]
            others = [read(front_door.generate("x", greedy(24), f"{i}")) for i in range(3)]
            for other in await asyncio.gather(*others):
                assert num_tokens(other) == 24, "the others get their 24 tokens meanwhile"
            rest = await read(slow)
        assert num_tokens(outputs + rest) == 12, (
            f"12 tokens were made for the slow reader and {num_tokens(outputs + rest)} reached it: what "
            "was not taken in time is merged, never dropped"
        )
        assert len(rest) == 1, (
            f"{len(rest)} outputs were waiting for the reader that had paused. A queue grows with every "
            "step for as long as nobody reads; merge into one"
        )

    run(
        main(),
        "One reader paused, and the other streams never ended: the engine waits for it. Leave the "
        "output in the collector and go on; `put` never waits",
    )


def test_a_refused_request_harms_nobody(
    lab: ModuleType, engine: WatchedEngine, batch: Callable[..., list[RequestOutput]]
) -> None:
    """Bad requests raise in their own caller; the stream beside them, of the same id even, is whole."""
    [want] = batch([PROMPT], [greedy(30)])
    bad: list[tuple[Any, SamplingParams, str, type[Exception]]] = [
        (PROMPT, greedy(3), "good", ValueError),  # the id is in use
        ("x" * 500, greedy(3), "too long", ValueError),
        (PROMPT, greedy(3, stop_token_ids=[9999]), "no such token", ValueError),
        ("", greedy(3), "empty", ValueError),
        (7, greedy(3), "no prompt", TypeError),
    ]

    async def main() -> None:
        gate = Gate(engine, first=6)
        async with lab.AsyncEngine(engine) as front_door:
            stream = front_door.generate(PROMPT, greedy(30), "good")
            outputs = [await anext(stream)]
            await gate.until_entered()
            refused = [
                asyncio.ensure_future(read(front_door.generate(prompt, params, request_id)))
                for prompt, params, request_id, _ in bad
            ]
            await turns()
            gate.opened.set()
            await asyncio.wait(refused)
            for task, (_, _, what, kind) in zip(refused, bad, strict=True):
                error = None if task.cancelled() else task.exception()
                assert type(error) is kind, (
                    f"the request {what!r} is refused with {kind.__name__} in its own reader; got "
                    f"{error!r}"
                )
            outputs += await read(stream)
            after = await read(front_door.generate("x", greedy(2), "after"))
        assert joined(outputs) == joined([want]), (
            f"five other requests were refused, and this stream suffered: {joined(outputs)}, it should "
            f"be {joined([want])}"
        )
        assert num_tokens(after) == 2, "and the next request is served"

    run(
        main(),
        "A request was refused, and a stream beside it never ended. The refused id may be that of a "
        "living stream: register a collector only after add_request has accepted, and abort nobody else. "
        "(Or is the engine waiting for a reader that has paused?)",
    )


def test_a_dying_step_ends_every_stream(lab: ModuleType, engine: WatchedEngine) -> None:
    """A step raises: all readers get EngineDeadError with the cause, and so does who comes later."""

    async def main() -> None:
        def die(record: Any) -> None:
            if record.index == 4:
                raise MemoryError("no room on the device")

        engine.engine_core.step_observers.append(die)
        async with lab.AsyncEngine(engine) as front_door:
            done = front_door.generate("x", greedy(2), "done")
            early = await anext(done)
            readers = [
                asyncio.ensure_future(read(front_door.generate(PROMPT, greedy(50), f"{i}")))
                for i in range(3)
            ]
            await asyncio.wait(readers)
            for task in readers:
                error = task.exception()
                assert type(error) is EngineDeadError, (
                    f"the engine died, so every stream ends with EngineDeadError, not {error!r}"
                )
                assert "no room on the device" in f"{error} {error.__cause__!r}", (
                    f"the error says what killed the engine; yours: {error}"
                )
            assert isinstance(error.__cause__, MemoryError), "and carries it as its __cause__"
            assert await refused(front_door.generate(PROMPT, greedy(2), "later")), (
                "a dead engine refuses later requests with EngineDeadError"
            )
            late = await read(done)
            assert num_tokens([early, *late]) == 2, (
                "this request had finished before the engine died, and its last token was waiting: it "
                "is whole, and the death of others is no concern of its reader"
            )

    run(
        main(),
        "A step raised, and a stream waits for ever. The task that steps must catch the error and put "
        "it into every collector; later requests are refused with it",
    )


def test_an_idle_engine_rests(lab: ModuleType, engine: WatchedEngine) -> None:
    """No step without work, no polling; a request that comes later wakes it."""

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            await turns()
            assert engine.num_steps == 0, "nobody has asked for anything yet: no step"
            await read(front_door.generate(PROMPT, greedy(5), "first"))
            await turns()
            assert engine.num_steps == 5, (
                f"5 tokens for one request are 5 steps, yours made {engine.num_steps}"
            )
            asked = engine.num_asked
            await turns(50)
            await asyncio.sleep(0.03)
            assert engine.num_steps == 5, (
                f"the engine has nothing to do, and made {engine.num_steps - 5} more steps"
            )
            assert engine.num_asked - asked <= 2, (
                f"the idle engine was asked for work {engine.num_asked - asked} times in 30 ms: that is "
                "a loop that burns a processor. Sleep on an event that a new request sets"
            )
            outputs = await read(front_door.generate(PROMPT, greedy(4), "second"))
            assert num_tokens(outputs) == 4, (
                f"the second request asks for 4 tokens, and its stream brought {num_tokens(outputs)}"
            )
            asked = engine.num_steps
        assert engine.num_steps == asked, (
            "closing woke the engine, and it made one more step: look at `error` again when you wake"
        )

    run(
        main(),
        "A request came to an idle engine and was never run: set the event that it sleeps on",
    )


def test_closing_ends_open_streams(lab: ModuleType, engine: WatchedEngine) -> None:
    """Leaving the context ends the step in flight, then every stream, with EngineDeadError."""

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            reader = asyncio.ensure_future(read(front_door.generate(PROMPT, greedy(100), "r")))
            await until(lambda: engine.num_steps > 2)
        await asyncio.wait([reader])
        assert type(reader.exception()) is EngineDeadError, (
            f"the engine was closed under this stream: EngineDeadError, not {reader.exception()!r}"
        )
        assert engine.num_steps < 50, "closing does not wait for the requests to finish"
        before = engine.num_steps
        assert await refused(front_door.generate(PROMPT, greedy(2), "later")), (
            "a closed engine refuses later requests with EngineDeadError"
        )
        assert engine.num_steps == before, "a closed engine takes no step"

    run(
        main(), "The engine was closed and a stream still waits: put the error into every collector"
    )


def test_closing_an_idle_engine(lab: ModuleType, engine: WatchedEngine) -> None:
    """The task that steps ends although nothing ever came."""

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            await turns()
        assert front_door.error is not None, "a closed engine says so to who comes later"
        assert engine.num_steps <= 1, "and nothing is computed"

    run(main(), "The engine was closed while idle, and its task still sleeps")
