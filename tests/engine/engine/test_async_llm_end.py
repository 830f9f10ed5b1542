"""`AsyncLLM`: what it refuses, how it ends, and its numbers."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mini_vllm import LLMEngine, RequestOutput, SamplingParams
from mini_vllm.engine.async_llm import AsyncLLM, EngineDeadError, EngineShutdownError, EngineStats
from mini_vllm.engine.step_record import StepRecord
from tests.engine.helpers.engine.async_helpers import (
    DELTA,
    LONG,
    Gate,
    collect,
    join,
    on_engine,
    run,
    same,
    serving,
)
from tests.engine.helpers.engine.text_helpers import check_no_leak, free_blocks, greedy, text_engine
from tests.engine.helpers.patience import PATIENCE

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
    with serving(paced=True) as async_llm:
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
    with serving(engine, paced=True) as async_llm:
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
            thread.join(PATIENCE)
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
    seen: list[EngineStats] = []

    async def main(async_llm: AsyncLLM) -> None:
        assert async_llm.stats == EngineStats()
        params = greedy(16, ignore_eos=True, output_kind=DELTA)
        prompt = "a prefix of two blocks, for everybody "
        for i in range(2):
            streams = [async_llm.generate(prompt, params, f"{i}-{j}") for j in range(4)]
            tasks = [asyncio.create_task(collect(stream)) for stream in streams]
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0)
                seen.append(async_llm.stats)
        # Finds nothing under a salt of its own; does not look, where every logprob is wanted.
        await collect(async_llm.generate({"prompt": prompt, "cache_salt": "s"}, params, "salted"))
        await collect(async_llm.generate(prompt, greedy(1, prompt_logprobs=0), "logprobs"))

    with serving(engine, paced=True) as async_llm:
        run(main(async_llm))
        last = async_llm.stats
    assert any(s.num_running_reqs == 2 and s.num_waiting_reqs == 2 for s in seen)
    assert 0 < max(s.kv_cache_usage for s in seen) <= 10 / 32
    assert last.num_steps == engine.engine_core.num_steps
    assert last.prefix_cache_queries == 9 * 39
    assert last.prefix_cache_hits == 7 * 32, "two blocks for each but the first and the salted"
    assert (last.num_running_reqs, last.num_waiting_reqs, last.kv_cache_usage) == (0, 0, 0.0)
