"""Noon one step ahead, on vLLM's `AsyncScheduler` and on `mini_vllm`'s: what the deep dive shows of both.

    python phase-03-scheduler/both_ahead.py                all topics
    python phase-03-scheduler/both_ahead.py ahead wasted   some

As `both_schedulers.py`, whose people and `World` these are, but with two plans in flight.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from both_schedulers import Say, World, ids_of, main, new_request, said_of, tokens

from course.parity.decisions import mini_parts
from course.parity.traces import EOS, Config, Parts
from mini_vllm.core.sched.async_scheduler import AsyncScheduler

Make = Callable[..., World]


def mini_ahead(config: Config) -> Parts:
    return mini_parts(config, AsyncScheduler)


def vllm_ahead(config: Config) -> Parts:
    from course.parity.record import vllm_parts

    return vllm_parts(config, async_scheduling=True)


def ahead(make: Make, say: Say) -> None:
    """Noon with two plans in flight: each plan is made before the result of the one before is in."""
    world = make()
    say("plan  made with result  computes                  placeholders")
    for number in range(1, 12):
        world.arrive()
        plan = world.plan()
        open_places = {n: r.num_output_placeholders for n, r in world.requests.items()}
        listed = ", ".join(f"{name} {n}" for name, n in open_places.items() if n)
        known = number - 2 if number > 2 else "-"
        say(f"{number:4}  {known!s:>16}  {tokens(plan):24}  {listed}")
        if len(world.in_flight) == 2:
            world.take_in()


def wasted(make: Make, say: Say) -> None:
    """Eve alone: her answer ends by EOS, or by its length. What is planned after its last token?"""
    for title, last, max_tokens in (("EOS is her 3rd token", EOS, 9), ("max_tokens is 3", 7, 3)):
        world = make(enable_prefix_caching=False)
        eve = new_request(world.parts, list(ids_of("eve")), {"max_tokens": max_tokens})
        scheduler: Any = world.scheduler
        scheduler.add_request(eve)
        plans: list[Any] = []
        planned: list[str] = []
        answer = [5, 6, last, 8]
        while scheduler.has_requests() or plans:
            if scheduler.has_requests():
                plans.append(scheduler.schedule())
                planned.append(str(plans[-1].total_num_scheduled_tokens))
            if len(plans) == 2 or not scheduler.has_requests():
                plan = plans.pop(0)
                rows = list(plan.num_scheduled_tokens)
                output = world.parts.make_output(rows, [[answer.pop(0)] for _ in rows])
                scheduler.update_from_output(plan, output)
        say(
            f"{title:21} tokens in each plan {' '.join(planned)}; "
            f"answer {list(eve.output_token_ids)}"
        )


TOPICS = {topic.__name__: topic for topic in (ahead, wasted)}


def topic(name: str) -> list[str]:
    """What `mini_vllm` says about one topic."""
    return said_of(TOPICS[name], mini_ahead)


if __name__ == "__main__":
    main(sys.argv[1:], TOPICS, mini_ahead, vllm_ahead)
