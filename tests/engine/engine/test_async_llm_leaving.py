"""`AsyncLLM`: whoever leaves, whenever, leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mini_vllm import RequestOutput, RequestOutputKind, SamplingParams
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.step_record import StepRecord
from tests.engine.helpers.engine.async_helpers import (
    DELTA,
    FINAL_ONLY,
    KINDS,
    LONG,
    Gate,
    collect,
    join,
    on_engine,
    run,
    same,
    serving,
)
from tests.engine.helpers.engine.invariants import check_state
from tests.engine.helpers.engine.text_helpers import check_no_leak, greedy, text_engine
from tests.engine.helpers.thorough import either

# -- leaving --------------------------------------------------------------------------------------


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
    with serving(engine, paced=True) as async_llm:
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


def test_many_streams_of_which_half_leave() -> None:
    count = either(40, 100)
    engine = text_engine(num_gpu_blocks=60, block_size=4, max_num_seqs=16)
    rng = random.Random(7)
    prompts = [f"{'shared ' * (i % 4)}prompt {i % 10}" for i in range(count)]
    params = greedy(20, ignore_eos=True, output_kind=DELTA)
    alone = {
        prompt: join(list(text_engine(num_gpu_blocks=64).stream(prompt, params)), DELTA)
        for prompt in set(prompts)
    }
    leave_after = [rng.randrange(20) if rng.random() < 0.5 else None for _ in range(count)]
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
        await asyncio.gather(*[one(async_llm, i) for i in range(count)])
        await on_engine(async_llm, check_no_leak)

    with serving(engine, stats=check) as async_llm:
        run(main(async_llm))
    assert sorted(stayed) == [i for i in range(count) if leave_after[i] is None]
    assert 0.3 * count <= len(stayed) <= 0.7 * count
