"""What vLLM's scheduler has and `mini_vllm`'s has not, for the deep dive.

    python phase-03-scheduler/vllm_alone.py           all topics
    python phase-03-scheduler/vllm_alone.py skipped   some

Needs vLLM 0.22.1; its CPU build will do. No model is loaded: the people, the pool and the tokens are those of
`both_schedulers.py`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from both_schedulers import CONFIG, Say, World, flat, names, tokens

from course.parity.decisions import mini_parts
from course.parity.record import vllm_parts
from course.parity.traces import Arrival, Config, Parts

SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def with_async(parts: Parts) -> Parts:
    """The same parts with vLLM's `AsyncScheduler` in place of its `Scheduler`."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    plain: Any = parts.scheduler
    scheduler: Any = AsyncScheduler(
        vllm_config=plain.vllm_config,
        kv_cache_config=plain.kv_cache_config,
        structured_output_manager=plain.structured_output_manager,
        block_size=CONFIG["block_size"],
        log_stats=False,
    )
    tables = scheduler.kv_cache_manager
    return replace(
        parts, scheduler=scheduler, block_ids=lambda name: flat(tables.get_block_ids(name))
    )


def new_world(**settings: Any) -> World:
    config: Config = CONFIG | settings  # type: ignore[assignment, operator]
    return World(vllm_parts(config))


def with_grammar(who: str) -> World:
    """Noon, but `who` wants JSON. Nobody compiles the grammar, unless the caller hands one in."""
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.request import Request

    world = new_world()
    make_request = world.parts.make_request

    def make(arrival: Arrival, index: int) -> Any:
        request = make_request(arrival, index)
        if request.request_id != who:
            return request
        request.sampling_params.structured_outputs = StructuredOutputsParams(json="{}")
        return Request(
            who, request.prompt_token_ids, request.sampling_params, None,
            block_hasher=request._block_hasher,
        )  # fmt: skip

    world.parts = replace(world.parts, make_request=make)
    return world


class AnyText:
    """A compiled grammar that every text obeys: only when it is there matters here."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True


def skipped(say: Say) -> None:
    """Who passes whom while a grammar compiles, and once it has compiled."""
    say("Gil wants JSON; his grammar never compiles")
    world = with_grammar("gil")
    world.steps_before(5)
    for _ in range(5, 9):
        say_queues(world, say)
    say("Hal comes a step after Gil and wants JSON; his grammar compiles during step 6")
    world = with_grammar("hal")
    world.comes = {"eve": 1, "fay": 4, "gil": 4, "hal": 5}
    world.steps_before(5)
    for _ in range(5, 9):
        if world.number == 6:
            world.requests["hal"].structured_output_request.grammar = AnyText()
        say_queues(world, say)


def say_queues(world: World, say: Say) -> None:
    """Make a step; say what it computes and who is in which queue after it."""
    computes = tokens(world.step())
    aside = [request.request_id for request in world.scheduler.skipped_waiting]
    say(
        f"step {world.number}: {computes}; waiting {names(world.waiting())}; skipped {names(aside)}"
    )


def stale(say: Say) -> None:
    """A victim that this step had already served: what is in the cache of Gil's tokens, and what is written.

    Gil, unimportant and with chunks of 7, stands before Hal. In step 7 he is granted the blocks of his last
    chunk, and then Hal needs one. The last line is `mini_vllm`'s.
    """
    config: Config = CONFIG | {
        "policy": "priority", "num_blocks": 16, "long_prefill_token_threshold": 7,
    }  # fmt: skip
    for who, parts in (("", vllm_parts(config)), ("mini_vllm, ", mini_parts(config))):
        world = World(parts, {"gil": 5}, {"gil": 1, "hal": 2})
        world.steps_before(6)
        written = world.requests["gil"].num_computed_tokens
        for number in range(6, 9):
            world.arrive()
            scheduler_output = world.schedule()
            given = scheduler_output.num_scheduled_tokens.get("gil", 0)
            gil = world.requests["gil"]
            line = f"{who}step {number}: {tokens(scheduler_output)}; "
            if number < 8:
                written += given
                found = world.manager.get_computed_blocks(gil)[1]
                line += f"gil has {written} written, {found} in the cache"
            else:
                line += f"gil goes on after {gil.num_computed_tokens - given}"
            if not who or number == 8:
                say(line)
            world.update()


def twice(say: Say) -> None:
    """Two steps in a row for Eve, without a result between them, by either scheduler."""
    for parts in (vllm_parts(CONFIG), with_async(vllm_parts(CONFIG))):
        world = World(parts)
        world.arrive()
        steps = [tokens(world.schedule()) for _ in range(2)]
        say(f"{type(world.scheduler).__name__:14}  {', then '.join(steps)}; {world.state('eve')}")


SHOWN = (stale, skipped, twice)
TOPICS = {topic.__name__: topic for topic in SHOWN}


def main(chosen: list[str]) -> None:
    if unknown := [name for name in chosen if name not in TOPICS]:
        raise SystemExit(f"no topic {', '.join(unknown)}; there are {', '.join(TOPICS)}")
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    for name in chosen or TOPICS:
        said: list[str] = []
        TOPICS[name](said.append)
        print(f"{name}, vLLM", *(line.rstrip() for line in said), sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
