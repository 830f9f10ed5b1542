"""`AsyncLLM`: streams equal the offline outputs, and whoever leaves, whenever, leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from invariants import check_drained, check_state
from text_helpers import check_no_leak, free_blocks, greedy, text_engine, write_checkpoint

from mini_vllm import LLM, EngineConfig, LLMEngine, RequestOutput, RequestOutputKind, SamplingParams
from mini_vllm.async_llm import AsyncLLM, EngineDeadError, EngineShutdownError, SchedulerStats
from mini_vllm.engine import StepRecord

T = TypeVar("T")
CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
KINDS = [CUMULATIVE, DELTA, FINAL_ONLY]


def run(main: Coroutine[Any, Any, T]) -> T:
    """Nothing here takes a second; what hangs is to fail."""
    return asyncio.run(asyncio.wait_for(main, 30))


@contextlib.contextmanager
def serving(engine: LLMEngine | None = None, **kwargs: Any) -> Iterator[AsyncLLM]:
    """An `AsyncLLM`; at the end it is shut down, and unless it died nothing may be left in it."""
    if engine is None:
        engine = text_engine(num_gpu_blocks=64)
    async_llm = AsyncLLM(engine, **kwargs)
    try:
        yield async_llm
    finally:
        async_llm.shutdown()
    assert not async_llm._thread._streams
    assert not async_llm._thread._patient
    if type(async_llm.dead_error) is EngineShutdownError:
        check_no_leak(engine)
        check_drained(engine.engine_core.scheduler)


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


# -- streams and offline outputs ------------------------------------------------------------------

MIXED = [
    ("greedy", greedy(30, ignore_eos=True)),
    ("seeded", SamplingParams(temperature=0.8, seed=5, max_tokens=25)),
    ("a longer prompt, to be cut in chunks", SamplingParams(top_p=0.9, seed=6, max_tokens=20)),
    ("three of them", SamplingParams(n=3, seed=1, max_tokens=12, logprobs=1)),
    ("a stop string", SamplingParams(seed=2, max_tokens=200, stop=["e", "th", "a"])),
    ("one that stays", greedy(60, stop=["\x00", "q"], include_stop_str_in_output=True)),
    ("logprobs", greedy(15, logprobs=3, prompt_logprobs=2)),
    ("penalties", SamplingParams(seed=3, repetition_penalty=1.3, frequency_penalty=0.4)),
    ({"prompt_token_ids": [1, 50, 60], "cache_salt": "s"}, greedy(9, stop_token_ids=[77])),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("async") / "model")


@pytest.fixture(scope="module")
def offline(checkpoint: Path) -> list[list[tuple[Any, ...]]]:
    llm = LLM(checkpoint, num_gpu_blocks=64)
    prompts: list[Any] = [prompt for prompt, _ in MIXED]
    outputs = llm.generate(prompts, [params for _, params in MIXED], use_tqdm=False)
    return [join([output], FINAL_ONLY) for output in outputs]


@pytest.mark.parametrize("kind", KINDS)
def test_streams_equal_the_offline_outputs(
    checkpoint: Path, offline: list[list[tuple[Any, ...]]], kind: RequestOutputKind
) -> None:
    config = EngineConfig(num_gpu_blocks=64, max_num_batched_tokens=16, max_num_seqs=8)
    async_llm = AsyncLLM(model=checkpoint, config=config)

    async def main() -> list[list[RequestOutput]]:
        streams = [
            collect(async_llm.generate(prompt, with_kind(params, kind), f"r{i}"))  # type: ignore[arg-type]
            for i, (prompt, params) in enumerate(MIXED)
        ]
        return await asyncio.gather(*streams)

    try:
        streams = run(main())
    finally:
        async_llm.shutdown()
    for i, (outputs, expected) in enumerate(zip(streams, offline, strict=True)):
        same(join(outputs, kind), expected)
        prompt = MIXED[i][0] if isinstance(MIXED[i][0], str) else None
        assert {(output.request_id, output.prompt) for output in outputs} == {(f"r{i}", prompt)}
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        if kind is FINAL_ONLY:
            assert len(outputs) == 1
    assert streams[6][0].prompt_logprobs is not None
    assert len(streams[6][0].prompt_logprobs) == len("logprobs") + 1
    check_no_leak(async_llm.engine)


def test_requests_come_from_many_tasks_at_any_time() -> None:
    """Equal to each alone, under preemption, with I1 to I13 checked between all steps."""
    prompts = [f"prompt {i} " * (1 + i % 3) for i in range(40)]
    alone = [
        join(
            list(text_engine(num_gpu_blocks=64).stream(p, greedy(24, ignore_eos=True))), FINAL_ONLY
        )
        for p in prompts
    ]
    engine = text_engine(num_gpu_blocks=40, block_size=4, max_num_seqs=12)
    rng = random.Random(1)

    def check(record: StepRecord) -> None:
        check_state(engine.engine_core.scheduler)

    async def one(async_llm: AsyncLLM, i: int) -> list[RequestOutput]:
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)
        params = greedy(24, ignore_eos=True, output_kind=DELTA)
        return await collect(async_llm.generate(prompts[i], params, str(i)))

    async def main(async_llm: AsyncLLM) -> list[list[RequestOutput]]:
        return await asyncio.gather(*[one(async_llm, i) for i in range(40)])

    with serving(engine, stats=check) as async_llm:
        streams = run(main(async_llm))
    for outputs, expected in zip(streams, alone, strict=True):
        same(join(outputs, DELTA), expected)
    assert engine.engine_core.scheduler.num_preemptions > 0


# -- slow consumers -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_consumer_gets_merged_outputs_and_loses_nothing(kind: RequestOutputKind) -> None:
    params = SamplingParams(n=3, seed=4, max_tokens=30, ignore_eos=True, logprobs=2)
    params.output_kind = FINAL_ONLY
    expected = join(list(text_engine(num_gpu_blocks=64).stream("slow", params)), FINAL_ONLY)

    async def main(async_llm: AsyncLLM) -> list[RequestOutput]:
        stream = async_llm.generate("slow", with_kind(params, kind), "s")
        outputs = [await anext(stream)]
        await async_llm.drain()  # all 90 tokens are there before the second look
        return outputs + await collect(stream)

    with serving() as async_llm:
        outputs = run(main(async_llm))
    assert len(outputs) == (1 if kind is FINAL_ONLY else 2), "what piles up is one output"
    assert outputs[-1].finished
    assert len(outputs[-1].outputs) == 3, "one completion each, however many were merged"
    same(join(outputs, kind), expected)


def test_a_loop_short_of_time_is_woken_for_first_and_last_outputs_only() -> None:
    async def main(async_llm: AsyncLLM) -> list[list[RequestOutput]]:
        params = greedy(40, ignore_eos=True, output_kind=DELTA)
        outputs = []
        for _ in range(2):  # the first round uses the loop's time up for good
            streams = [async_llm.generate("hello", params, str(i)) for i in range(3)]
            outputs += await asyncio.gather(*map(collect, streams))
        return outputs

    with serving(max_loop_share=1e-9) as async_llm:
        for outputs in run(main(async_llm)):
            assert len(outputs) == 2
            assert len(outputs[0].outputs[0].token_ids) < 40
            assert sum(len(o.outputs[0].token_ids) for o in outputs) == 40


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_a_share_of_time_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match=r"max_loop_share must be above 0 and at most 1"):
        AsyncLLM(text_engine(num_gpu_blocks=8), max_loop_share=share)


def test_the_loop_is_woken_once_a_step_for_all() -> None:
    calls = 0

    async def main(async_llm: AsyncLLM) -> None:
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            return original(*args, **kwargs)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        params = greedy(10, ignore_eos=True, output_kind=DELTA)
        streams = [async_llm.generate("hello", params, str(i)) for i in range(30)]
        await asyncio.gather(*map(collect, streams))

    with serving(max_loop_share=1) as async_llm:
        run(main(async_llm))
        assert 0 < calls <= async_llm.stats.num_steps


# -- leaving --------------------------------------------------------------------------------------


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
            assert self.open.wait(20)


def dawdle(record: StepRecord) -> None:
    """An observer that makes a request last: else it may be over before a busy machine looks."""
    time.sleep(0.001)


LONG = greedy(150, ignore_eos=True, output_kind=DELTA)


async def leaves_at_once(async_llm: AsyncLLM) -> None:
    stream = async_llm.generate("first", LONG, "a")
    await stream.aclose()  # never started


async def leaves_before_an_output(async_llm: AsyncLLM) -> None:
    task = asyncio.create_task(collect(async_llm.generate("first", LONG, "a")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def breaks_off(async_llm: AsyncLLM) -> None:
    async with contextlib.aclosing(async_llm.generate("first", LONG, "a")) as stream:
        async for output in stream:
            if output.outputs[0].token_ids:
                break


async def is_cancelled(async_llm: AsyncLLM) -> None:
    stream = async_llm.generate("first", LONG, "a")
    await anext(stream)
    task = asyncio.create_task(collect(stream))
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def is_forgotten(async_llm: AsyncLLM) -> None:
    stream = async_llm.generate("first", LONG, "a")
    await anext(stream)
    del stream
    gc.collect()
    for _ in range(3):  # the loop is told, makes a task, runs it
        await asyncio.sleep(0)


async def raises(async_llm: AsyncLLM) -> None:
    async def consumer() -> None:
        async with contextlib.aclosing(async_llm.generate("first", LONG, "a")) as stream:
            async for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await consumer()


async def leaves_with_n(async_llm: AsyncLLM) -> None:
    params = SamplingParams(n=4, max_tokens=100, ignore_eos=True, seed=0, output_kind=DELTA)
    stream = async_llm.generate("first", params, "a")
    await anext(stream)
    await stream.aclose()


async def leaves_the_prefill(async_llm: AsyncLLM) -> None:
    """81 tokens in chunks of 8: no output for ten steps."""
    task = asyncio.create_task(collect(async_llm.generate("x" * 80, LONG, "a")))
    while async_llm.stats.num_steps < 2:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leaves_the_queue(async_llm: AsyncLLM) -> None:
    """One may run, so the second waits."""
    stream = async_llm.generate("first", LONG, "b")
    await anext(stream)
    await leaves_before_an_output(async_llm)
    assert await on_engine(async_llm, lambda e: list(e.engine_core.scheduler.requests)) == ["b"]
    await stream.aclose()


async def leaves_after_the_end(async_llm: AsyncLLM) -> None:
    """The last output was read, the generator not run out; its id may have a new owner."""
    stream = async_llm.generate("first", greedy(1, output_kind=DELTA), "a")
    assert (await anext(stream)).finished
    other = async_llm.generate("second", LONG, "a")
    await anext(other)
    await stream.aclose()
    assert await on_engine(async_llm, lambda e: e.get_num_unfinished_requests()) == 1
    await other.aclose()


@pytest.mark.parametrize(
    "leave",
    [
        leaves_at_once,
        leaves_before_an_output,
        breaks_off,
        is_cancelled,
        is_forgotten,
        raises,
        leaves_with_n,
        leaves_the_prefill,
        leaves_the_queue,
        leaves_after_the_end,
    ],
)
def test_whoever_leaves_frees_blocks(
    leave: Callable[[AsyncLLM], Coroutine[Any, Any, None]],
) -> None:
    seqs = 1 if leave is leaves_the_queue else 4
    engine = text_engine(
        num_gpu_blocks=64, block_size=4, max_num_batched_tokens=8, max_num_seqs=seqs
    )

    async def main(async_llm: AsyncLLM) -> None:
        await leave(async_llm)
        await on_engine(async_llm, check_no_leak)  # before another step, not some time later
        assert async_llm.stats.num_steps < 100, "it was aborted, not run to its end"
        # The id is free again, and the engine as good as new.
        outputs = await collect(async_llm.generate("first", greedy(5, ignore_eos=True), "a"))
        assert outputs[-1].outputs[0].token_ids == expected

    (final,) = text_engine(num_gpu_blocks=64).stream(
        "first", greedy(5, ignore_eos=True, output_kind=FINAL_ONLY)
    )
    expected = final.outputs[0].token_ids
    with serving(engine, stats=dawdle) as async_llm:
        run(main(async_llm))


def test_leaving_in_the_middle_of_a_step_counts_before_the_next() -> None:
    gate = Gate()
    gate.hold_at = 4

    async def main(async_llm: AsyncLLM) -> list[RequestOutput]:
        leaver, stayer = (async_llm.generate("hello", LONG, name) for name in ("a", "b"))
        await anext(leaver)
        rest = asyncio.create_task(collect(stayer))
        while not gate.reached.is_set():
            await asyncio.sleep(0.0005)
        await leaver.aclose()
        gate.open.set()
        return await rest

    with serving(stats=gate) as async_llm:
        outputs = run(main(async_llm))
    assert outputs[-1].finished
    assert "a" in gate.ran[3]
    assert all("a" not in ran for ran in gate.ran[4:]), "it ran after its consumer had gone"


def test_leaving_as_the_last_token_comes_spares_the_next_owner_of_the_id() -> None:
    gate = Gate()
    gate.hold_at = 2

    async def main(async_llm: AsyncLLM) -> list[RequestOutput]:
        short = async_llm.generate("short", greedy(2, ignore_eos=True, output_kind=DELTA), "a")
        await anext(short)
        while not gate.reached.is_set():
            await asyncio.sleep(0.0005)
        # Its last token is computed, and not yet seen. The commands come in this order:
        task = asyncio.create_task(collect(async_llm.generate("hello", LONG, "a")))
        await asyncio.sleep(0)
        await short.aclose()
        gate.open.set()
        return await task

    with serving(stats=gate) as async_llm:
        outputs = run(main(async_llm))
    assert sum(len(output.outputs[0].token_ids) for output in outputs) == 150


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2])
def test_abort_by_id_ends_the_stream_with_what_there_is(kind: RequestOutputKind, n: int) -> None:
    gate = Gate()
    gate.hold_at = 5

    async def main(async_llm: AsyncLLM) -> list[RequestOutput]:
        params = SamplingParams(n=n, max_tokens=150, ignore_eos=True, seed=3, output_kind=kind)
        task = asyncio.create_task(collect(async_llm.generate("hello", params, "a")))
        while not gate.reached.is_set():
            await asyncio.sleep(0.0005)
        await async_llm.abort("a")
        await async_llm.abort(["a", "never heard of"])
        gate.open.set()
        return await task

    with serving(stats=gate) as async_llm:
        outputs = run(main(async_llm))
    completions = join(outputs, kind)
    assert outputs[-1].finished
    assert [(c[0], len(c[2]), c[4]) for c in completions] == [(i, 5, "abort") for i in range(n)]


def test_abort_wants_ids() -> None:
    with serving() as async_llm, pytest.raises(TypeError, match="request ids must be strings"):
        run(async_llm.abort([[]]))  # type: ignore[list-item]


def test_a_hundred_streams_of_which_half_leave() -> None:
    engine = text_engine(num_gpu_blocks=60, block_size=4, max_num_seqs=16)
    rng = random.Random(7)
    prompts = [f"{'shared ' * (i % 4)}prompt {i % 10}" for i in range(100)]
    params = greedy(20, ignore_eos=True, output_kind=DELTA)
    alone = {
        prompt: join(list(text_engine(num_gpu_blocks=64).stream(prompt, params)), DELTA)
        for prompt in set(prompts)
    }
    leave_after = [rng.randrange(20) if rng.random() < 0.5 else None for _ in range(100)]
    stayed = []

    def check(record: StepRecord) -> None:
        check_state(engine.engine_core.scheduler)

    async def one(async_llm: AsyncLLM, i: int) -> None:
        for _ in range(i % 7):
            await asyncio.sleep(0)
        outputs: list[RequestOutput] = []
        leave = leave_after[i]
        async with contextlib.aclosing(async_llm.generate(prompts[i], params, str(i))) as stream:
            async for output in stream:
                outputs.append(output)
                tokens = sum(len(each.outputs[0].token_ids) for each in outputs)
                if leave is not None and tokens >= leave:
                    return
        stayed.append(i)
        same(join(outputs, DELTA), alone[prompts[i]])

    async def main(async_llm: AsyncLLM) -> None:
        await asyncio.gather(*[one(async_llm, i) for i in range(100)])
        await on_engine(async_llm, check_no_leak)

    with serving(engine, stats=check) as async_llm:
        run(main(async_llm))
    assert sorted(stayed) == [i for i in range(100) if leave_after[i] is None]
    assert 40 <= len(stayed) <= 60


# -- refusals -------------------------------------------------------------------------------------

REFUSED: list[tuple[Any, Any, Any, dict[str, Any]]] = [
    ("", LONG, "a", {}),
    (7, LONG, "a", {}),
    ([999], LONG, "a", {}),
    (["x"], LONG, "a", {}),
    ("x" * 300, LONG, "a", {}),
    ({"text": "x"}, LONG, "a", {}),
    ("x", None, "a", {}),
    ("x", SamplingParams(logprobs=50), "a", {}),
    ("x", greedy(5, stop_token_ids=[500]), "a", {}),
    ("x", LONG, "", {}),
    ("x", LONG, 5, {}),
    ("x", LONG, ["a"], {}),
    ("x", LONG, "taken", {}),
    ("x", SamplingParams(n=2, seed=1), "taken", {}),
    ("x", LONG, "a", {"priority": "high"}),
    ({"prompt": "x", "cache_salt": "a\ud800"}, LONG, "a", {}),
    ("a\udfffb", LONG, "a", {}),
    ("x" * 150, greedy(100), "a", {}),  # more blocks than the pool has
]


def test_a_refused_request_gets_the_engines_error_and_harms_nobody() -> None:
    settings: dict[str, Any] = {"num_gpu_blocks": 15}
    twin = text_engine(**settings)
    twin.add_request("taken", "x", LONG)
    gate = Gate()
    expected = join(list(text_engine(**settings).stream("good", LONG)), DELTA)

    async def main(async_llm: AsyncLLM) -> list[RequestOutput]:
        good = async_llm.generate("good", LONG, "taken")
        outputs = [await anext(good)]
        for prompt, params, request_id, more in REFUSED:
            with pytest.raises((TypeError, ValueError)) as theirs:
                twin.add_request(request_id, prompt, params, **more)
            with pytest.raises(theirs.type) as ours:
                await anext(async_llm.generate(prompt, params, request_id, **more))
            assert str(ours.value) == str(theirs.value)
        return outputs + await collect(good)

    with serving(text_engine(**settings), stats=gate) as async_llm:
        outputs = run(main(async_llm))
    same(join(outputs, DELTA), expected)
    assert set().union(*gate.ran) == {"taken"}, "a refused request was computed"


@pytest.mark.parametrize(
    ("more", "kind", "rule"),
    [
        ({"arrival_time": "x"}, TypeError, "arrival_time must be a number of seconds, got 'x'"),
        ({"arrival_time": True}, TypeError, "arrival_time must be a number of seconds, got True"),
        ({"arrival_time": float("nan")}, ValueError, "arrival_time must be finite, got nan"),
        ({"arrival_time": float("inf")}, ValueError, "arrival_time must be finite, got inf"),
        ({"priority": None}, TypeError, "priority must be an integer, got None"),
    ],
)
def test_what_could_not_be_ordered_is_refused_at_the_door(
    more: dict[str, Any], kind: type[Exception], rule: str
) -> None:
    """In the queue, it would kill the engine, and everybody with it."""
    engine = text_engine(num_gpu_blocks=64, scheduling_policy="priority")
    engine.add_request("good", "x", greedy(3))
    with pytest.raises(kind, match=re.escape(rule)):
        engine.add_request("bad", "x", greedy(3), **more)
    engine.add_request("later", "x", greedy(3), arrival_time=5)
    while engine.has_unfinished_requests():
        engine.step()
    check_no_leak(engine)


@pytest.mark.parametrize("length", [3, 40])
def test_half_a_character_in_a_salt_is_refused_at_the_door(length: int) -> None:
    """A short prompt has no full block to hash yet: it once killed the engine in a later step."""
    engine = text_engine(num_gpu_blocks=64, block_size=16)
    with pytest.raises(ValueError, match=r"cache_salt is not valid Unicode text: '\\ud800' at"):
        engine.add_request("a", {"prompt": "x" * length, "cache_salt": "s\ud800"}, greedy(30))
    assert not engine.has_unfinished_requests()


def test_the_engine_is_handed_what_was_processed_once() -> None:
    """Tokenized and checked on the loop's thread, and not again on the engine's."""
    threads: list[str] = []

    async def main(async_llm: AsyncLLM) -> None:
        inputs = async_llm.engine.input_processor
        original = inputs.process_inputs

        def counted(*args: Any, **more: Any) -> Any:
            threads.append(threading.current_thread().name)
            return original(*args, **more)

        inputs.process_inputs = counted  # type: ignore[method-assign]
        await collect(async_llm.generate("x", greedy(2), "a"))

    with serving() as async_llm:
        run(main(async_llm))
    assert threads == [threading.current_thread().name]


def test_one_loop_only() -> None:
    async def one(async_llm: AsyncLLM) -> list[RequestOutput]:
        return await collect(async_llm.generate("x", greedy(2), "a"))

    with serving() as async_llm:
        run(one(async_llm))
        for call in (one(async_llm), async_llm.abort("a"), async_llm.drain()):
            with pytest.raises(RuntimeError, match="event loop of its first call"):
                run(call)


def test_a_loop_that_is_closed_leaves_nobody_behind() -> None:
    loop = asyncio.new_event_loop()
    with serving(stats=dawdle) as async_llm:
        streams = [async_llm.generate("x", LONG, str(i)) for i in range(3)]
        for stream in streams:
            loop.run_until_complete(anext(stream))
        loop.close()
        while async_llm.engine.has_unfinished_requests():
            threading.Event().wait(0.001)
        assert async_llm.is_running
        assert async_llm.stats.num_steps < 100, "they ran to the end for nobody"


# -- the end --------------------------------------------------------------------------------------


def fails_in_the_model(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = engine.engine_core.model_runner
    execute, steps = runner.execute_model, iter(range(100))

    def dying(scheduler_output: Any) -> Any:
        if next(steps) == 3:
            raise ArithmeticError("the chip is on fire")
        return execute(scheduler_output)

    monkeypatch.setattr(runner, "execute_model", dying)


def fails_in_an_observer(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(record: StepRecord) -> None:
        if record.index == 4:
            raise ArithmeticError("the chip is on fire")

    engine.engine_core.step_observers.append(dying)


def fails_in_the_detokenizer(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    process, steps = engine.output_processor.process_outputs, iter(range(100))

    def dying(outputs: Any) -> Any:
        if next(steps) == 3:
            raise ArithmeticError("the chip is on fire")
        return process(outputs)

    monkeypatch.setattr(engine.output_processor, "process_outputs", dying)


@pytest.mark.parametrize(
    "fails", [fails_in_the_model, fails_in_an_observer, fails_in_the_detokenizer]
)
def test_a_step_that_dies_ends_every_stream(
    fails: Callable[[LLMEngine, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = text_engine(num_gpu_blocks=64, max_num_seqs=3)
    fails(engine, monkeypatch)

    async def main(async_llm: AsyncLLM) -> None:
        await async_llm.check_health()
        streams = [async_llm.generate("x", LONG, str(i)) for i in range(5)]  # two of them wait
        results = await asyncio.gather(*map(collect, streams), return_exceptions=True)
        for error in results:
            assert type(error) is EngineDeadError
            assert "the chip is on fire" in str(error)
            assert isinstance(error.__cause__, ArithmeticError)
        assert len({id(error) for error in results}) == 5, "each raises an error of its own"
        with pytest.raises(EngineDeadError, match="on fire"):
            await async_llm.check_health()
        with pytest.raises(EngineDeadError, match="on fire"):
            await anext(async_llm.generate("x", LONG, "late"))
        assert async_llm.errored
        assert not async_llm.is_running
        await async_llm.abort("0")
        await async_llm.drain()

    with serving(engine) as async_llm:
        run(main(async_llm))


def test_drain_lets_all_finish_and_nobody_in() -> None:
    gate = Gate()
    gate.hold_at = 3

    async def main(async_llm: AsyncLLM) -> None:
        params = greedy(20, ignore_eos=True, output_kind=DELTA)
        inside = [
            asyncio.create_task(collect(async_llm.generate("x", params, str(i)))) for i in range(5)
        ]
        while not gate.reached.is_set():
            await asyncio.sleep(0.0005)
        drains = [asyncio.create_task(async_llm.drain()) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(EngineShutdownError, match="draining"):
            await anext(async_llm.generate("x", params, "late"))
        drains.pop().cancel()
        assert not any(drain.done() for drain in drains)
        await async_llm.check_health()
        gate.open.set()
        await asyncio.gather(*drains)
        assert await on_engine(async_llm, LLMEngine.get_num_unfinished_requests) == 0
        for task in inside:
            assert sum(len(o.outputs[0].token_ids) for o in await task) == 20
        await async_llm.drain()  # nothing to wait for
        with pytest.raises(EngineShutdownError, match="draining"):
            await anext(async_llm.generate("x", params, "late"))

    with serving(stats=gate) as async_llm:
        run(main(async_llm))


def test_shutdown_ends_open_streams_with_an_error_that_says_so() -> None:
    async def main(async_llm: AsyncLLM) -> None:
        streams = [async_llm.generate("x", LONG, str(i)) for i in range(3)]
        for stream in streams:
            await anext(stream)
        async_llm.shutdown()
        late = [async_llm.generate("x", LONG, "late")]
        ends = await asyncio.gather(*map(collect, streams + late), return_exceptions=True)
        assert [type(end) for end in ends] == [EngineShutdownError] * 4
        assert all("shut down" in str(end) for end in ends)
        with pytest.raises(EngineShutdownError):
            await async_llm.check_health()
        await async_llm.drain()
        await async_llm.abort("0")
        async_llm.shutdown()

    engine = text_engine(num_gpu_blocks=64)
    with serving(engine) as async_llm:
        run(main(async_llm))
        assert not async_llm.is_running
        assert free_blocks(engine) == 63
        assert async_llm.stats.num_running_reqs == 0


def test_shutdown_may_come_before_anything_and_from_anywhere() -> None:
    with serving() as async_llm:
        others = [threading.Thread(target=async_llm.shutdown) for _ in range(3)]
        for thread in others:
            thread.start()
        for thread in others:
            thread.join(10)
        assert not async_llm.is_running
    with pytest.raises(EngineShutdownError):
        run(async_llm.check_health())


def test_a_command_that_shutdown_overtakes_is_answered() -> None:
    gate = Gate()
    gate.hold_at = 2

    async def main(async_llm: AsyncLLM) -> None:
        first = asyncio.create_task(collect(async_llm.generate("x", LONG, "a")))
        while not gate.reached.is_set():
            await asyncio.sleep(0.0005)
        second = asyncio.create_task(collect(async_llm.generate("x", LONG, "b")))
        draining = asyncio.create_task(async_llm.drain())
        await asyncio.sleep(0)
        async_llm.shutdown(timeout=0)  # the step is still under way
        assert async_llm.is_running
        gate.open.set()
        for task in (first, second):
            with pytest.raises(EngineShutdownError, match="shut down"):
                await task
        await draining

    with serving(stats=gate) as async_llm:
        run(main(async_llm))


# -- numbers --------------------------------------------------------------------------------------


def test_stats_are_whole_and_current() -> None:
    engine = text_engine(num_gpu_blocks=33, max_num_seqs=2)
    seen: list[SchedulerStats] = []

    async def main(async_llm: AsyncLLM) -> None:
        assert async_llm.stats == SchedulerStats()
        params = greedy(40, ignore_eos=True, output_kind=DELTA)
        prompt = "a prefix of two blocks, for everybody "
        for i in range(2):
            streams = [async_llm.generate(prompt, params, f"{i}-{j}") for j in range(4)]
            tasks = [asyncio.create_task(collect(stream)) for stream in streams]
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0.0005)
                seen.append(async_llm.stats)
        # Finds nothing under a salt of its own; does not look, where every logprob is wanted.
        await collect(async_llm.generate({"prompt": prompt, "cache_salt": "s"}, params, "salted"))
        await collect(async_llm.generate(prompt, greedy(1, prompt_logprobs=0), "logprobs"))

    with serving(engine) as async_llm:
        run(main(async_llm))
        last = async_llm.stats
    assert any(s.num_running_reqs == 2 and s.num_waiting_reqs == 2 for s in seen)
    assert 0 < max(s.kv_cache_usage for s in seen) <= 10 / 32
    assert last.num_steps == engine.engine_core.num_steps
    assert last.prefix_cache_queries == 9 * 39
    assert last.prefix_cache_hits == 7 * 32, "two blocks for each but the first and the salted"
    assert (last.num_running_reqs, last.num_waiting_reqs, last.kv_cache_usage) == (0, 0, 0.0)
