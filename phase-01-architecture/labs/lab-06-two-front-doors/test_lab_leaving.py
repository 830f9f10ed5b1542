"""Lab 01-06, leaving: a reader that goes frees blocks and id, whenever it goes."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support
from mini_vllm.engine.core import EngineDeadError
from mini_vllm.outputs import RequestOutput

support = load_support(__file__)
WAITS = (
    "a reader left during a step, and still waits while the step goes on: leaving must not wait for the "
    "lock, since a second cancellation could end that wait. Write the id down, and let whoever holds the "
    "lock next abort it"
)


@pytest.mark.parametrize("how", ["cancel", "aclose", "break"])
def test_leaving_frees_the_blocks(lab: ModuleType, engine: Any, how: str) -> None:
    """After a cancelled task, an aclose or a break, the request is aborted after the step in flight."""
    free = engine.num_free_blocks

    async def main() -> None:
        in_step = support.Gate(engine, first=5)
        enough = support.Gate(engine, first=10)  # who has left by step 5 needs no tenth
        if how != "break":
            engine.before_step = in_step
        async with lab.AsyncEngine(engine) as front_door:
            outputs: list[RequestOutput] = []

            async def reader() -> None:
                async for output in front_door.generate(support.PROMPT, support.greedy(100), "r"):
                    outputs.append(output)
                    if how == "break" and support.num_tokens(outputs) >= 3:
                        break

            if how == "aclose":
                stream = front_door.generate(support.PROMPT, support.greedy(100), "r")
                while support.num_tokens(outputs) < 3:
                    outputs.append(await anext(stream))
                await in_step.until_entered()
                closing = asyncio.ensure_future(stream.aclose())
                await asyncio.wait([closing], timeout=support.PATIENCE / 2)
                assert closing.done(), WAITS
            else:
                task = asyncio.ensure_future(reader())
                if how == "cancel":
                    await in_step.until_entered()
                    task.cancel()
                    await asyncio.wait([task], timeout=support.PATIENCE / 2)
                    assert task.done(), WAITS
                    assert task.cancelled(), (
                        "the reader's task was cancelled during the stream and went on as if the answer "
                        "were complete: generate may clean up after a CancelledError and has to let it "
                        "pass. A `finally` does both"
                    )
                await asyncio.wait([task])
            await support.turns()
            engine.before_step = enough
            in_step.opened.set()
            ended = await support.until(lambda: engine.alive == 0, support.PATIENCE / 2)
            enough.opened.set()
            assert ended, (
                f"the reader left ({how}) after 3 tokens, and the engine goes on to generate its 100, "
                "for nobody. Whatever ends generate, its `finally` must have the request aborted"
            )
            assert engine.num_free_blocks == free, (
                f"{free - engine.num_free_blocks} blocks are still taken after the only reader left"
            )
            again = await support.read(
                front_door.generate(support.PROMPT, support.greedy(2), "next")
            )
            assert support.num_tokens(again) == 2, (
                "the engine serves the next request as if nothing had been"
            )
        assert engine.overlaps == [], f"{engine.overlaps} called during a step"

    support.run(main(), "after a reader has left, the engine must go on for the others")


@pytest.mark.parametrize("how", ["at the end", "cancel", "aclose", "break", "before it was added"])
def test_nobody_who_left_is_still_listed(lab: ModuleType, engine: Any, how: str) -> None:
    """However a stream ends, its collector is gone, and no note of it stays."""

    async def main() -> None:
        gate = support.Gate(engine, first=3)
        async with lab.AsyncEngine(engine) as front_door:
            most = 2 if how == "at the end" else 100

            async def reader() -> None:
                async for _ in front_door.generate(support.PROMPT, support.greedy(most), "r"):
                    if how == "break":
                        break

            if how == "aclose":
                stream = front_door.generate(support.PROMPT, support.greedy(most), "r")
                await anext(stream)
                await stream.aclose()
            elif how == "before it was added":
                other = asyncio.ensure_future(
                    support.read(front_door.generate("x", support.greedy(4), "other"))
                )
                await gate.until_entered()
                task = asyncio.ensure_future(reader())
                await support.turns()
                task.cancel()
                gate.opened.set()
                await asyncio.wait([task, other])
            else:
                task = asyncio.ensure_future(reader())
                if how == "cancel":
                    await gate.until_entered()
                    task.cancel()
                await asyncio.wait([task])
            gate.opened.set()
            await support.turns()
            assert "r" not in front_door.collectors, (
                f"the reader of 'r' is gone ({how}), and `collectors` still has its collector: "
                "outputs would be put there for nobody, and the table grows with everybody who "
                "ever left. Take it out"
            )
            assert await support.until(lambda: engine.alive == 0), (
                f"the reader is gone ({how}), and its request runs on"
            )
            await support.read(front_door.generate("y", support.greedy(1), "next"))
            assert (dict(front_door.collectors), list(front_door.leavers)) == ({}, []), (
                f"all streams have ended, and the front door still lists {sorted(front_door.collectors)} in "
                f"`collectors` and {list(front_door.leavers)} in `leavers`"
            )

    support.run(main(), "a stream did not end, or nobody was served after it")


def test_leaving_during_the_last_step(lab: ModuleType, engine: Any) -> None:
    """A request that finishes in the step during which its reader leaves is not aborted."""

    async def main() -> None:
        gate = support.Gate(engine, first=3)
        async with lab.AsyncEngine(engine) as front_door:
            reader = asyncio.ensure_future(
                support.read(front_door.generate(support.PROMPT, support.greedy(3), "r"))
            )
            await gate.until_entered()
            reader.cancel()
            await support.turns()
            gate.opened.set()
            assert await support.until(lambda: engine.alive == 0), (
                "the request has had its 3 tokens"
            )
            try:
                again = await support.read(
                    front_door.generate(support.PROMPT, support.greedy(2), "next")
                )
            except EngineDeadError as error:
                raise AssertionError(
                    f"a reader left during the step that finished its request, and that killed the "
                    f"engine: {error}. abort_request raises ValueError for an id that is not alive; "
                    "ask before you abort"
                ) from error
            assert support.num_tokens(again) == 2, "the next request is served"

    support.run(main(), "after that step the engine has no work, and must still take new requests")


def test_an_id_that_was_left_is_free_at_once(lab: ModuleType, engine: Any) -> None:
    """An id left and used again during the same step belongs to the new request."""

    async def main() -> None:
        gate = support.Gate(engine, first=3)
        async with lab.AsyncEngine(engine) as front_door:
            first = asyncio.ensure_future(
                support.read(front_door.generate(support.PROMPT, support.greedy(60), "same"))
            )
            await gate.until_entered()
            first.cancel()
            await asyncio.wait([first])
            second = asyncio.ensure_future(
                support.read(front_door.generate("x", support.greedy(5), "same"))
            )
            await support.turns()
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

    support.run(main(), "the second request of the id gets no answer")


def test_a_late_reader_does_not_end_its_successor(lab: ModuleType, engine: Any) -> None:
    """When a finished request's id is taken again, closing the old stream ends only the old stream."""

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            old = front_door.generate(support.PROMPT, support.greedy(2), "same")
            await anext(old)
            assert await support.until(lambda: engine.alive == 0), "2 tokens are soon made"
            gate = support.Gate(engine, first=engine.num_steps + 2)
            new = asyncio.ensure_future(
                support.read(front_door.generate("x", support.greedy(6), "same"))
            )
            await gate.until_entered()
            await old.aclose()
            gate.opened.set()
            assert support.num_tokens(await new) == 6, "the new request of the id lost tokens"

    support.run(
        main(),
        "The old stream was closed and took the new request of the same id with it: abort only if the "
        "collector registered under the id is your own",
    )
