"""Lab 01-06, each for itself: what a reader, a request or a dying step must not do to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import ModuleType
from typing import Any

from course.learner.labs import load_support
from mini_vllm.engine.core import EngineDeadError
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import SamplingParams

support = load_support(__file__)


def test_a_slow_reader_stalls_nobody(lab: ModuleType, engine: Any) -> None:
    """A reader that pauses holds up no other; one merged output waits for it."""

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            slow = front_door.generate(support.PROMPT, support.greedy(12), "slow")
            outputs = [await anext(slow)]
            others = [
                support.read(front_door.generate("x", support.greedy(24), f"{i}")) for i in range(3)
            ]
            for other in await asyncio.gather(*others):
                assert support.num_tokens(other) == 24, "the others get their 24 tokens meanwhile"
            rest = await support.read(slow)
        assert support.num_tokens(outputs + rest) == 12, (
            f"12 tokens were made for the slow reader and {support.num_tokens(outputs + rest)} reached "
            "it: what was not taken in time is merged, never dropped"
        )
        assert len(rest) == 1, (
            f"{len(rest)} outputs were waiting for the reader that had paused. A queue grows with every "
            "step for as long as nobody reads; merge into one"
        )

    support.run(
        main(),
        "One reader paused, and the other streams never ended: the engine waits for it. Leave the "
        "output in the collector and go on; `put` never waits",
    )


def test_a_refused_request_harms_nobody(
    lab: ModuleType, engine: Any, batch: Callable[..., list[RequestOutput]]
) -> None:
    """A bad request raises in its own caller; the stream beside it, even of the same id, is whole."""
    [want] = batch([support.PROMPT], [support.greedy(30)])
    bad: list[tuple[Any, SamplingParams, str, type[Exception]]] = [
        (support.PROMPT, support.greedy(3), "good", ValueError),  # the id is in use
        ("x" * 500, support.greedy(3), "too long", ValueError),
        (support.PROMPT, support.greedy(3, stop_token_ids=[9999]), "no such token", ValueError),
        ("", support.greedy(3), "empty", ValueError),
        (7, support.greedy(3), "no prompt", TypeError),
    ]

    async def main() -> None:
        gate = support.Gate(engine, first=6)
        async with lab.AsyncEngine(engine) as front_door:
            stream = front_door.generate(support.PROMPT, support.greedy(30), "good")
            outputs = [await anext(stream)]
            await gate.until_entered()
            refused = [
                asyncio.ensure_future(support.read(front_door.generate(prompt, params, request_id)))
                for prompt, params, request_id, _ in bad
            ]
            await support.turns()
            gate.opened.set()
            await asyncio.wait(refused)
            for task, (_, _, what, kind) in zip(refused, bad, strict=True):
                error = None if task.cancelled() else task.exception()
                assert type(error) is kind, (
                    f"the request {what!r} is refused with {kind.__name__} in its own reader; got "
                    f"{error!r}"
                )
            outputs += await support.read(stream)
            after = await support.read(front_door.generate("x", support.greedy(2), "after"))
        got, wanted = support.joined(outputs), support.joined([want])
        assert got == wanted, (
            "five other requests were refused, and this stream suffered: "
            f"{support.first_difference(got, wanted)}"
        )
        assert support.num_tokens(after) == 2, "and the next request is served"

    support.run(
        main(),
        "A request was refused, and a stream beside it never ended. The refused id may be that of a "
        "living stream: register a collector only after add_request has accepted, and abort nobody else. "
        "(Or is the engine waiting for a reader that has paused?)",
    )


def test_a_dying_step_ends_every_stream(lab: ModuleType, engine: Any) -> None:
    """When a step raises, all readers and later callers get EngineDeadError with the cause."""

    async def main() -> None:
        def die(record: Any) -> None:
            if record.index == 4:
                raise MemoryError("no room on the device")

        engine.engine_core.step_observers.append(die)
        async with lab.AsyncEngine(engine) as front_door:
            done = front_door.generate("x", support.greedy(2), "done")
            early = await anext(done)
            readers = [
                asyncio.ensure_future(
                    support.read(front_door.generate(support.PROMPT, support.greedy(50), f"{i}"))
                )
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
            assert await support.refused(
                front_door.generate(support.PROMPT, support.greedy(2), "later")
            ), "a dead engine refuses later requests with EngineDeadError"
            late = await support.read(done)
            assert support.num_tokens([early, *late]) == 2, (
                "this request had finished before the engine died, and its last token was waiting: it "
                "is whole, and the death of others is no concern of its reader"
            )

    support.run(
        main(),
        "A step raised, and a stream waits for ever. The task that steps must catch the error and put "
        "it into every collector; later requests are refused with it",
    )


def test_a_newcomer_at_a_dying_engine_is_refused(lab: ModuleType, engine: Any) -> None:
    """A request that waits for the lock while the step dies gets the error, and does not wait for ever."""

    async def main() -> None:
        gate = support.Gate(engine, first=2)

        def die(step: int) -> None:
            gate(step)
            if step >= 2:
                raise MemoryError("no room on the device")

        engine.before_step = die
        async with lab.AsyncEngine(engine) as front_door:
            runs = asyncio.ensure_future(
                support.refused(front_door.generate(support.PROMPT, support.greedy(9), "runs"))
            )
            await gate.until_entered()
            comes = asyncio.ensure_future(
                support.refused(front_door.generate("y", support.greedy(4), "comes"))
            )
            await support.turns()
            gate.opened.set()
            ended, _ = await asyncio.wait([runs, comes], timeout=support.PATIENCE)
            assert runs in ended, "the engine died under this stream, and it waits for ever"
            assert runs.result() is True, "the engine died under this stream: EngineDeadError"
            assert comes in ended, (
                "a request came during the step that killed the engine, waited for the lock, and "
                "was added to a dead engine, where nobody will ever put anything into its "
                "collector. Look at `error` when you have the lock: what was true before you "
                "waited need not be true now"
            )
            assert comes.result() is True, "a dead engine refuses a newcomer with EngineDeadError"
        assert engine.num_steps == 2, (
            f"the engine died in step 2 and has stepped {engine.num_steps} times"
        )

    support.run(main(), "A newcomer waits for an engine that is dead")


def test_an_idle_engine_sleeps_on_its_event(lab: ModuleType, engine: Any) -> None:
    """An idle engine does not poll: the task that steps sets no timer and is not woken."""

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            wakings = support.Wakings(front_door._task)
            await support.read(front_door.generate(support.PROMPT, support.greedy(3), "r"))
            await support.turns()
            before = wakings.turns
            await support.turns(50)
            assert wakings.turns == before, (
                f"nobody asks for anything, and the task that steps took {wakings.turns - before} "
                "turns of the event loop's 50 to look for work. Let it await `work`: then it "
                "costs nothing until a request sets it"
            )
            assert wakings.timers == 0, (
                f"the task that steps set a timer {wakings.timers} times. An engine that sleeps by "
                "the clock wakes for nothing while it is idle, and makes the next request wait "
                "for the rest of its sleep. Await `work`"
            )

    support.run(main(), "A stream of three tokens did not end")


def test_an_idle_engine_rests(lab: ModuleType, engine: Any) -> None:
    """An idle engine takes no steps and does not poll; a later request wakes it."""

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            await support.turns()
            assert engine.num_steps == 0, "nobody has asked for anything yet: no step"
            await support.read(front_door.generate(support.PROMPT, support.greedy(5), "first"))
            await support.turns()
            assert engine.num_steps == 5, (
                f"5 tokens for one request are 5 steps, yours made {engine.num_steps}"
            )
            asked = engine.num_asked
            await support.turns(50)
            await asyncio.sleep(0.03)
            assert engine.num_steps == 5, (
                f"the engine has nothing to do, and made {engine.num_steps - 5} more steps"
            )
            assert engine.num_asked - asked <= 2, (
                f"the idle engine was asked for work {engine.num_asked - asked} times in 30 ms: that is "
                "a loop that burns a processor. Sleep on an event that a new request sets"
            )
            outputs = await support.read(
                front_door.generate(support.PROMPT, support.greedy(4), "second")
            )
            assert support.num_tokens(outputs) == 4, (
                f"the second request asks for 4 tokens, and its stream brought {support.num_tokens(outputs)}"
            )
            asked = engine.num_steps
        assert engine.num_steps == asked, (
            "closing woke the engine, and it made one more step: look at `error` again when you wake"
        )

    support.run(
        main(),
        "A request came to an idle engine and was never run: set the event that it sleeps on",
    )


def test_closing_ends_open_streams(lab: ModuleType, engine: Any) -> None:
    """Leaving the context ends the step in flight, then every open stream with EngineDeadError."""

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            reader = asyncio.ensure_future(
                support.read(front_door.generate(support.PROMPT, support.greedy(100), "r"))
            )
            await support.until(lambda: engine.num_steps > 2)
        await asyncio.wait([reader])
        assert type(reader.exception()) is EngineDeadError, (
            f"the engine was closed under this stream: EngineDeadError, not {reader.exception()!r}"
        )
        assert engine.num_steps < 50, "closing does not wait for the requests to finish"
        before = engine.num_steps
        assert await support.refused(
            front_door.generate(support.PROMPT, support.greedy(2), "later")
        ), "a closed engine refuses later requests with EngineDeadError"
        assert engine.num_steps == before, "a closed engine takes no step"

    support.run(
        main(), "The engine was closed and a stream still waits: put the error into every collector"
    )


def test_closing_an_idle_engine(lab: ModuleType, engine: Any) -> None:
    """Closing an idle engine ends the task that steps, although no request ever came."""

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            await support.turns()
        assert front_door.error is not None, "a closed engine says so to who comes later"
        assert engine.num_steps <= 1, "and nothing is computed"

    support.run(main(), "The engine was closed while idle, and its task still sleeps")
