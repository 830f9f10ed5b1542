"""Noon one step ahead, on vLLM's `AsyncScheduler` and on `mini_vllm`'s: what the deep dive shows of both.

    python phase-03-scheduler/both_ahead.py                all topics
    python phase-03-scheduler/both_ahead.py slowly wasted   some

As `both_schedulers.py`, whose people and `World` these are, but with two steps in flight.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from both_schedulers import Say, World, ids_of, main, new_request, said_of

from course.parity.decisions import mini_parts
from course.parity.traces import EOS, Config, Parts
from mini_vllm.core.sched.async_scheduler import AsyncScheduler

Make = Callable[..., World]


def mini_ahead(config: Config) -> Parts:
    return mini_parts(config, AsyncScheduler)


def vllm_ahead(config: Config) -> Parts:
    from course.parity.record import vllm_parts

    return vllm_parts(config, async_scheduling=True)


def slowly(make: Make, say: Say) -> None:
    """Eve's first three steps with two in flight: her counters as computed/tokens+placeholders before a step,
    after the base class has advanced the counter, and with the placeholder."""
    world = make()

    def state() -> str:
        eve = world.requests["eve"]
        return f"{eve.num_computed_tokens}/{eve.num_tokens}+{eve.num_output_placeholders}"

    between: list[str] = []
    [base] = [cls for cls in type(world.scheduler).__mro__ if cls.__name__ == "Scheduler"]
    advance = base._update_after_schedule

    def advance_and_note(scheduler: Any, scheduler_output: Any) -> None:
        advance(scheduler, scheduler_output)
        between.append(state())

    say("step  before  gets  counter moved  placeholder left")
    for number in range(1, 4):
        world.arrive()
        before = state()
        with patch.object(base, "_update_after_schedule", advance_and_note):
            gets = world.schedule().num_scheduled_tokens["eve"]
        say(f"{number:4}  {before:7} {gets:4}  {between[-1]:13}  {state()}")
        if len(world.in_flight) == 2:
            world.update()
            say(f"      result of step {number - 1}: {state()}")


def wasted(make: Make, say: Say) -> None:
    """Eve alone: her answer ends by EOS, or by its length. What is computed after its last token?

    Steps that compute nothing are not shown: one while the last result is awaited, and one at the end, which
    only tells the worker who has finished.
    """
    for title, last, max_tokens in (("EOS is her 3rd token", EOS, 9), ("max_tokens is 3", 7, 3)):
        world = make(enable_prefix_caching=False)
        eve = new_request(world.parts, list(ids_of("eve")), {"max_tokens": max_tokens})
        scheduler: Any = world.scheduler
        scheduler.add_request(eve)
        in_flight: list[Any] = []
        computed: list[str] = []
        answer = [5, 6, last, 8]
        while scheduler.has_requests() or in_flight:
            if scheduler.has_requests():
                in_flight.append(scheduler.schedule())
                if given := in_flight[-1].total_num_scheduled_tokens:
                    computed.append(str(given))
            if len(in_flight) == 2 or not scheduler.has_requests():
                scheduler_output = in_flight.pop(0)
                rows = list(scheduler_output.num_scheduled_tokens)
                output = world.parts.make_output(rows, [[answer.pop(0)] for _ in rows])
                scheduler.update_from_output(scheduler_output, output)
        say(f"{title:20}  computes {', '.join(computed):10}  answer {list(eve.output_token_ids)}")


TOPICS = {topic.__name__: topic for topic in (slowly, wasted)}


def topic(name: str) -> list[str]:
    """What `mini_vllm` says about one topic."""
    return said_of(TOPICS[name], mini_ahead)


if __name__ == "__main__":
    main(sys.argv[1:], TOPICS, mini_ahead, vllm_ahead)
