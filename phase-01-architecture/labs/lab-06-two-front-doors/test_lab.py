"""Lab 01-06: what was not read yet is merged, and streams that an engine's thread feeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import ModuleType
from typing import Any

from course.learner.labs import load_support
from mini_vllm.engine.core import EngineDeadError
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

support = load_support(__file__)


# ---- the collector -------------------------------------------------------------------------------


def test_the_collector_merges_what_was_not_taken(lab: ModuleType) -> None:
    """Three outputs become one for a reader that reads once, with all that they said."""

    async def main() -> None:
        collector = lab.OutputCollector()
        for text, token_id in (("a", 1), ("b", 2), ("c", 3)):
            collector.put(support.make_output(text, [token_id]))
        output = await collector.get()
        assert support.joined([output])[0]["token_ids"] == [1, 2, 3], (
            f"tokens 1, 2 and 3 were put before the reader came: one get gives them all, yours gave "
            f"{support.joined([output])[0]['token_ids']}. A delta that is replaced instead of merged is lost"
        )
        waiting = asyncio.ensure_future(collector.get())
        await support.turns()
        assert not waiting.done(), (
            "all was taken, so the next get waits, and it returned at once: is `get` as it was given?"
        )
        collector.put(support.make_output("d", [4]))
        later = await waiting
        assert later.outputs[0].token_ids == [4], "what comes after a get is new, and comes alone"
        assert output.outputs[0].token_ids == [1, 2, 3], (
            "what the reader has taken is the reader's: a later output must not be merged into it"
        )

    support.run(main(), "`get` waits for the event that `put` sets: set it in every put")


def test_the_collector_hands_on_errors(lab: ModuleType) -> None:
    """An error takes the place of what is there, and get raises it."""

    async def main() -> None:
        for first in ([], [support.make_output("a", [1])]):
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

    support.run(main(), "an error wakes the reader as an output does")


# ---- streams -------------------------------------------------------------------------------------

MIXED: list[tuple[Any, SamplingParams]] = [
    (support.PROMPT, support.greedy(20)),
    (support.PROMPT, SamplingParams(temperature=0.9, seed=1, max_tokens=30, logprobs=2)),
    ({"prompt_token_ids": [1, 50, 60, 70]}, support.greedy(1)),
    ("The scheduler picks requests and the blocks follow", support.greedy(12, prompt_logprobs=1)),
    ("ab", SamplingParams(seed=3, max_tokens=40, allowed_token_ids=[105, 106], stop=["abb"])),
    ("ab", SamplingParams(seed=4, max_tokens=40, allowed_token_ids=[105, 106], stop=["bab", "aa"],
                          min_tokens=5, include_stop_str_in_output=True)),
    ("ab", SamplingParams(seed=5, max_tokens=40, allowed_token_ids=[105, 2])),
    (support.PROMPT, SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=9, logprobs=0)),
]  # fmt: skip
"""Prompts and parameters: greedy, seeded, n = 3, logprobs, stop strings, EOS. Token 105 is 'a', 106 'b'."""


def test_streams_joined_are_the_batch_outputs(
    lab: ModuleType, engine: Any, batch: Callable[..., list[RequestOutput]]
) -> None:
    """The joined deltas of eight concurrent streams are what LLM.generate returns."""
    prompts, params = [p for p, _ in MIXED], [s for _, s in MIXED]
    want = [support.joined([output]) for output in batch(prompts, params)]

    async def main() -> None:
        async with lab.AsyncEngine(engine) as front_door:
            streams = [
                support.read(front_door.generate(prompt, param, f"request {i}"))
                for i, (prompt, param) in enumerate(MIXED)
            ]
            results = await asyncio.gather(*streams)
        for outputs, wanted, (_, param) in zip(results, want, MIXED, strict=True):
            got = support.joined(outputs)
            assert got == wanted, (
                f"one of eight streams (max_tokens={param.max_tokens}, n={param.n}, "
                f"stop={param.stop}), joined, is not what LLM.generate says: "
                f"{support.first_difference(got, wanted)}"
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

    support.run(
        main(), "A stream ends after the output that says finished; new work must wake the engine"
    )


def test_text_comes_while_the_engine_runs(lab: ModuleType, engine: Any) -> None:
    """The first token reaches its reader before the fourth is made."""

    async def main() -> None:
        gate = support.Gate(engine, first=4)
        async with lab.AsyncEngine(engine) as front_door:
            outputs = []
            async for output in front_door.generate(support.PROMPT, support.greedy(6), "r"):
                outputs.append(output)
                gate.opened.set()
        assert not gate.forced, (
            "the engine stood at the beginning of step 4 and the reader had not seen token 1. Deliver "
            "the outputs of each step as soon as it is over"
        )
        assert support.num_tokens(outputs) == 6, (
            f"6 tokens, yours brought {support.num_tokens(outputs)}"
        )
        assert all(support.num_tokens([output]) > 0 for output in outputs), "no output without news"

    support.run(main(), "the reader waits for outputs that nobody delivers")


def test_the_event_loop_runs_during_a_step(lab: ModuleType, engine: Any) -> None:
    """A long step leaves the event loop free: a heartbeat goes on in the middle of it."""

    async def main() -> None:
        gate = support.Gate(engine, first=2)
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
            await support.read(front_door.generate(support.PROMPT, support.greedy(3), "r"))
            await heart
        assert not gate.forced, (
            "step 2 waited for five beats of a heartbeat on the event loop, and none came: the step runs "
            "on the event loop itself, so every other task of the server stands still. Give it to a "
            "thread: await asyncio.to_thread(self.engine.step)"
        )

    support.run(main(), "the step never ended")


def test_nobody_calls_the_engine_during_a_step(lab: ModuleType, engine: Any) -> None:
    """A request that arrives, and a reader that leaves, wait for the end of the step in flight."""

    async def main() -> None:
        gate = support.Gate(engine, first=3)
        async with lab.AsyncEngine(engine) as front_door:
            stays = asyncio.ensure_future(
                support.read(front_door.generate(support.PROMPT, support.greedy(6), "stays"))
            )
            leaves = asyncio.ensure_future(
                support.read(front_door.generate("x", support.greedy(60), "leaves"))
            )
            await gate.until_entered()
            comes = asyncio.ensure_future(
                support.read(front_door.generate("y", support.greedy(4), "comes"))
            )
            leaves.cancel()
            await support.turns()
            overlaps = list(engine.overlaps)
            gate.opened.set()
            assert support.num_tokens(await stays) == 6, "the request that stays gets its 6 tokens"
            assert support.num_tokens(await comes) == 4, (
                "the request that came during a step gets its 4"
            )
        assert overlaps == engine.overlaps == [], (
            f"{engine.overlaps} called while a step was running in its thread: two threads in one engine "
            "spoil its queues and blocks. Hold the lock, or leave a note for who holds it"
        )

    support.run(main(), "who comes or leaves during a step must go on after it")


def test_who_gives_up_before_being_added_leaves_nothing(lab: ModuleType, engine: Any) -> None:
    """A request cancelled while it waits for the engine is never run, or ended at once."""

    async def main() -> None:
        gate = support.Gate(engine, first=2)
        async with lab.AsyncEngine(engine) as front_door:
            stays = asyncio.ensure_future(
                support.read(front_door.generate(support.PROMPT, support.greedy(8), "stays"))
            )
            await gate.until_entered()
            assert not gate.forced, (
                "step 2 waited for the event loop, and nothing ran there: the step runs on it itself"
            )
            gives_up = asyncio.ensure_future(
                support.read(front_door.generate("x", support.greedy(60), "gone"))
            )
            await support.turns()
            gives_up.cancel()
            await support.turns()
            gate.opened.set()
            await stays
            assert await support.until(lambda: engine.alive == 0), (
                "a reader gave up before its request had been added, and it runs all the same"
            )
            assert engine.num_steps < 20, (
                f"8 tokens for the one that stayed, and the engine made {engine.num_steps} steps: it "
                "ran the request of the one that had gone"
            )

    support.run(main(), "a reader that is cancelled while it waits for the lock must not keep it")
